#include "memory/mapped_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/fail.h"
#include "base/test_util.h"

namespace moetape::inline v0 {
namespace {

namespace fs = std::filesystem;

class MappedFileTest : public testing::Test {
 protected:
  MappedFileTest() { fs::create_directories(folder_); }
  ~MappedFileTest() override { fs::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text) const {
    const std::string path = folder_ / name;
    std::ofstream(path) << text;
    return path;
  }

  const fs::path folder_ =
      fs::path(testing::TempDir()) /
      fmt::format("moetape_{}", testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(MappedFileTest, ShowsTheBytesThatWereThereWhenItWasOpened) {
  const std::string path = write("file", "expert 0");
  const auto file = value_of(MappedFile::open(path));
  ASSERT_EQ(file->size(), 8);
  EXPECT_EQ(std::memcmp(file->data(), "expert 0", 8), 0);
  fs::rename(write("other", "expert 1"), path);
  EXPECT_EQ(std::memcmp(file->data(), "expert 0", 8), 0) << "the name is another file's now";
  fs::remove(path);
  expect_ok(file->check_size());
}

TEST_F(MappedFileTest, AnEmptyFileHasNoBytes) {
  const auto file = value_of(MappedFile::open(write("file", "")));
  EXPECT_EQ(file->size(), 0);
  expect_ok(file->check_size());
}

TEST_F(MappedFileTest, AFileThatWasCutIsTold) {
  const std::string path = write("file", "expert 0");
  const auto file = value_of(MappedFile::open(path));
  fs::resize_file(path, 9);
  expect_ok(file->check_size());
  fs::resize_file(path, 5);
  expect_error(file->check_size(), ErrorCode::kCorruptData, "expected 8 bytes, as when it was opened, got 5");
}

TEST_F(MappedFileTest, WithoutADescriptorACutIsToldByThePath) {
  const std::string path = write("file", "expert 0");
  const auto file = value_of(MappedFile::open(path));
  file->close_descriptor();
  EXPECT_EQ(std::memcmp(file->data(), "expert 0", 8), 0);
  expect_ok(file->check_size());
  fs::resize_file(path, 5);
  expect_error(file->check_size(), ErrorCode::kCorruptData, "expected 8 bytes, as when it was opened, got 5");
  fs::rename(path, folder_ / "elsewhere");
  expect_ok(file->check_size());
  write("file", "another");
  expect_ok(file->check_size());
}

TEST_F(MappedFileTest, WhatIsNoFileIsRefused) {
  expect_error(MappedFile::open(folder_ / "none"), ErrorCode::kIo, "none: cannot be opened: No such file");
  expect_error(MappedFile::open(folder_), ErrorCode::kInvalidArgument,
               "expected a regular file, got a folder");
  expect_error(MappedFile::open("/dev/null"), ErrorCode::kInvalidArgument, "got something else");
}

}  // namespace
}  // namespace moetape::inline v0
