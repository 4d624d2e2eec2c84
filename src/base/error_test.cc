#include "moetape/error.h"

#include <gtest/gtest.h>

#include <set>
#include <string_view>

#include "base/fail.h"
#include "moetape/array.h"

namespace moetape::inline v0 {
namespace {

TEST(Error, TableFollowsTheEnum) {
  ASSERT_EQ(error_codes().size(), static_cast<size_t>(kNumErrorCodes));
  for (int i = 0; i < kNumErrorCodes; ++i) {
    EXPECT_EQ(static_cast<int>(error_codes()[static_cast<size_t>(i)].code), i);
  }
}

TEST(Error, NamesAreDistinctAndNotEmpty) {
  std::set<std::string_view> names;
  std::set<std::string_view> python_names;
  for (const ErrorCodeInfo& info : error_codes()) {
    EXPECT_FALSE(info.name.empty());
    EXPECT_TRUE(info.python_name.ends_with("Error")) << info.python_name;
    EXPECT_EQ(error_name(info.code), info.name);
    names.insert(info.name);
    python_names.insert(info.python_name);
  }
  EXPECT_EQ(names.size(), error_codes().size());
  EXPECT_EQ(python_names.size(), error_codes().size());
}

Result<int> half(int number) {
  if (number % 2 != 0)
    return fail(ErrorCode::kInvalidArgument, "number: expected an even one, got {}", number);
  return number / 2;
}

Result<int> quarter(int number) {
  MOETAPE_ASSIGN(const int first, half(number));
  MOETAPE_TRY(half(first));
  return half(first);
}

TEST(Fail, FormatsTheMessage) {
  const Result<int> result = half(3);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(result.error().message, "number: expected an even one, got 3");
}

TEST(Fail, MacrosPassValuesAndErrorsOn) {
  EXPECT_EQ(quarter(12).value(), 3);
  EXPECT_EQ(quarter(3).error().message, "number: expected an even one, got 3");
  EXPECT_EQ(quarter(6).error().message, "number: expected an even one, got 3");
}

TEST(IntType, KnowsBytesSignAndName) {
  EXPECT_EQ(int_type_bytes(IntType::kInt8), 1);
  EXPECT_EQ(int_type_bytes(IntType::kUint16), 2);
  EXPECT_EQ(int_type_bytes(IntType::kInt32), 4);
  EXPECT_EQ(int_type_bytes(IntType::kUint64), 8);
  EXPECT_TRUE(int_type_signed(IntType::kInt64));
  EXPECT_FALSE(int_type_signed(IntType::kUint8));
  EXPECT_EQ(int_type_name(IntType::kInt8), "int8");
  EXPECT_EQ(int_type_name(IntType::kUint64), "uint64");
}

}  // namespace
}  // namespace moetape::inline v0
