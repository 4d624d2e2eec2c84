#include <cstdio>

#include "moetape/error.h"

int main() {
  for (const moetape::ErrorCodeInfo& info : moetape::error_codes()) {
    std::printf("%s\n", info.name.data());
  }
  std::puts("consumer: ok");
  return 0;
}
