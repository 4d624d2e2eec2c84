// For the tests of every room: values and errors out of a Result, and random bytes.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "moetape/error.h"

namespace moetape::inline v0 {

// Ends the test by an exception that names the error, where there is one.
template <class T>
T value_of(Result<T> result) {
  if (!result) {
    throw std::runtime_error(std::string(error_name(result.error().code)) + ": " + result.error().message);
  }
  return *std::move(result);
}

inline void expect_ok(const Status& status) {
  EXPECT_TRUE(status.has_value()) << (status ? "" : status.error().message);
}

template <class T>
void expect_error(const Result<T>& result, ErrorCode code, const std::string& text) {
  ASSERT_FALSE(result.has_value()) << "expected: " << text;
  EXPECT_EQ(error_name(result.error().code), error_name(code)) << result.error().message;
  EXPECT_THAT(result.error().message, testing::HasSubstr(text));
}

inline std::vector<std::byte> random_bytes(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

}  // namespace moetape::inline v0
