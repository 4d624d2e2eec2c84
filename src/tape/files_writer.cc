#include "tape/files_writer.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/fail.h"
#include "base/memory_guard.h"
#include "memory/mapped_file.h"

namespace moetape::inline v0 {

using tape::FileWriter;
using tape::HiddenFile;
using tape::Shard;
using tape::Target;

namespace {

// Shards that no index names would stay for ever.
Status check_replaceable(const std::string& path) {
  const auto file = MappedFile::open(path);
  if (!file || !tape::is_index({(*file)->data(), static_cast<size_t>((*file)->size())})) return {};
  return fail(ErrorCode::kConflict,
              "{}: expected no tape of several files there: remove it with its shards, or write elsewhere",
              path);
}

}  // namespace

Result<std::unique_ptr<TapeWriter::Impl>> TapeWriter::Impl::create(const std::string& path,
                                                                   const RouteSpec& spec,
                                                                   const TapeOptions& options) {
  if (options.max_file_bytes < 0) {
    return fail(ErrorCode::kInvalidArgument, "max_file_bytes: expected 0 or more, got {}",
                options.max_file_bytes);
  }
  MOETAPE_ASSIGN(tape::Description description, tape::describe(spec, options));
  MOETAPE_ASSIGN(Target target, Target::resolve(path));
  MOETAPE_TRY(options.overwrite ? check_replaceable(target.path()) : target.check_free());
  std::unique_ptr<Impl> impl(new Impl(std::move(description), std::move(target), options));
  MOETAPE_TRY(impl->open_file());
  return impl;
}

Status TapeWriter::Impl::check_open() const {
  if (!finished_) return {};
  return fail(ErrorCode::kClosed, "{}: expected a tape that is being written, got one that is finished",
              target_.path());
}

Status TapeWriter::Impl::open_file() {
  MOETAPE_ASSIGN(std::unique_ptr<HiddenFile> output, HiddenFile::create(target_));
  HiddenFile* hidden = output.get();
  MOETAPE_ASSIGN(file_, FileWriter::create(description_, std::move(output), target_.folder));
  hidden_ = hidden;
  return {};
}

Status TapeWriter::Impl::close_file() {
  parts_.reserve(parts_.size() + 1);  // from finish() on nothing may fail but the disk
  MOETAPE_ASSIGN(FileWriter::Finished finished, file_->finish());
  MOETAPE_TRY(hidden_->sync());
  hidden_->close();
  Shard shard{.num_bytes = finished.num_bytes,
              .num_sequences = file_->num_sequences(),
              .num_rows = file_->num_rows(),
              .header_checksum = std::move(finished.header_checksum)};
  std::unique_ptr<HiddenFile> file(static_cast<HiddenFile*>(file_->take_output().release()));
  parts_.push_back({std::move(file), std::move(shard)});
  file_.reset();
  return {};
}

Status TapeWriter::Impl::append(const tape::SequenceInput& input) {
  MOETAPE_TRY(check_open());
  return guard_memory(target_.path(), [&]() -> Status {
    if (file_ && max_file_bytes_ > 0 && file_->num_sequences() > 0 &&
        file_->most_bytes() + file_->most_bytes_of(input) > max_file_bytes_) {
      MOETAPE_TRY(close_file());
    }
    if (!file_) MOETAPE_TRY(open_file());
    const int64_t rows_before = file_->num_rows();
    MOETAPE_TRY(file_->append(input));
    num_rows_ += file_->num_rows() - rows_before;
    ++num_sequences_;
    return {};
  });
}

Status TapeWriter::Impl::finish() {
  MOETAPE_TRY(check_open());
  return guard_memory(target_.path(), [&]() -> Status {
    if (!parts_.empty() && file_ && file_->num_sequences() == 0) file_.reset();
    if (file_) MOETAPE_TRY(close_file());
    if (overwrite_) MOETAPE_TRY(check_replaceable(target_.path()));  // it may have come since
    if (parts_.size() == 1) {
      MOETAPE_TRY(parts_[0].file->rename(target_.name, overwrite_));
    } else {
      MOETAPE_TRY(publish_shards());
    }
    for (const Part& part : parts_) part.file->keep();
    parts_.clear();
    finished_ = true;
    return tape::sync_folder(target_.folder);
  });
}

// The shards under their names first, then the index that makes them a tape.
Status TapeWriter::Impl::publish_shards() {
  if (tag_.empty()) tag_ = tape::random_tag();
  tape::Index index{.fingerprint = description_.spec.fingerprint(), .shards = {}};
  for (size_t i = 0; i < parts_.size(); ++i) {
    parts_[i].shard.file = tape::shard_name(target_.name, i, parts_.size(), tag_);
    MOETAPE_TRY(parts_[i].file->rename(parts_[i].shard.file, false));
    index.shards.push_back(parts_[i].shard);
  }
  MOETAPE_TRY(tape::sync_folder(target_.folder));
  MOETAPE_ASSIGN(std::unique_ptr<HiddenFile> file, HiddenFile::create(target_));
  const std::string text = tape::format_index(index);
  MOETAPE_TRY(file->write(0, std::as_bytes(std::span(text))));
  MOETAPE_TRY(file->sync());
  MOETAPE_TRY(file->rename(target_.name, overwrite_));
  file->keep();
  return {};
}

}  // namespace moetape::inline v0
