#include "tape/file_writer.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/checked.h"
#include "base/fail.h"
#include "base/memory_guard.h"
#include "tape/text.h"

namespace moetape::inline v0::tape {
namespace {

std::string padding_name(size_t number) { return fmt::format("{}{}", kPaddingPrefix, number); }

std::vector<Spool> make_spools(size_t count, const std::optional<std::string>& folder) {
  std::vector<Spool> spools;
  for (size_t i = 0; i < count; ++i) spools.emplace_back(folder);
  return spools;
}

template <class T>
Status append_value(Spool& spool, T value) {
  return spool.append_values(std::span<const T>(&value, 1));
}

Status append_text(Spool& bytes, Spool& offsets, std::string_view text) {
  MOETAPE_TRY(bytes.append(std::as_bytes(std::span(text))));
  return append_value(offsets, bytes.size());
}

// The runs that rows have which are there, in rows of the tape.
std::vector<VersionRun> runs_of(const SequenceInput& input, const Facts& facts) {
  std::vector<VersionRun> runs;
  for (const VersionRun& given : input.versions) {
    for (int64_t row = given.start - input.start; row < given.end - input.start; ++row) {
      if (!facts.is_valid(row)) continue;
      const int64_t at = facts.first_row + row;
      if (!runs.empty() && runs.back().end == at && runs.back().version == given.version) {
        ++runs.back().end;
      } else {
        runs.push_back({at, at + 1, given.version});
      }
    }
  }
  return runs;
}

}  // namespace

// What a failed append goes back to.
struct FileWriter::Mark {
  int64_t num_rows, num_blocks, num_runs;
  bool any_missing, any_tokens;
  std::byte last_bits;
  std::vector<int64_t> sizes;
};

FileWriter::FileWriter(Description description, std::unique_ptr<Output> output,
                       std::optional<std::string> folder)
    : description_(std::move(description)), output_(std::move(output)), folder_(std::move(folder)) {
  const auto num_groups = static_cast<int>(description_.layer_groups.size());
  if (num_groups == 0) groups_.push_back(IdGroup::of(description_, -1));
  for (int group = 0; group < num_groups; ++group) groups_.push_back(IdGroup::of(description_, group));
  row_spools_ = make_spools(groups_.size() - 1, folder_);
  small_spools_ = make_spools(kNumSmallTensors, folder_);
}

Result<std::unique_ptr<FileWriter>> FileWriter::create(Description description,
                                                       std::unique_ptr<Output> output,
                                                       std::optional<std::string> folder) {
  std::unique_ptr<FileWriter> writer(
      new FileWriter(std::move(description), std::move(output), std::move(folder)));
  MOETAPE_ASSIGN(writer->metadata_, write_metadata(writer->description_));
  writer->metadata_.emplace_back(kContentChecksum, kNoChecksum);
  MOETAPE_ASSIGN(writer->header_bytes_, writer->header_bytes());
  for (const SmallTensor offsets : {kOffsets, kBlockOffsets, kIdOffsets, kMetaOffsets}) {
    MOETAPE_TRY(append_value(writer->small_spools_[offsets], int64_t{0}));
  }
  return writer;
}

Status FileWriter::append(const SequenceInput& input) {
  MOETAPE_TRY(check(input));
  MOETAPE_TRY(begin(input));
  const Mark before = mark();
  const Status status = guard_memory("tape", [&]() -> Status {
    Facts facts{.first_row = num_rows_,
                .end_row = num_rows_ + input.num_rows,
                .start = input.start,
                .first_block = num_blocks_,
                .id = input.id,
                .meta = input.meta};
    MOETAPE_TRY(append_rows(input, facts));
    return append_facts(input, facts);
  });
  if (!status) {
    go_back(before);
    return status;
  }
  ++num_sequences_;
  return {};
}

Status FileWriter::check(const SequenceInput& input) const {
  MOETAPE_TRY(check_utf8("sequence id", input.id));
  MOETAPE_TRY(check_utf8("sequence meta", input.meta));
  if (input.start < 0 || !checked_add(input.start, input.num_rows)) {
    return fail(ErrorCode::kOutOfRange, "rows: expected positions from 0 to 2^63, got {} rows from {}",
                input.num_rows, input.start);
  }
  if (input.tokens && std::ssize(*input.tokens) != input.num_rows) {
    return fail(ErrorCode::kWrongShape, "tokens: expected one for each of {} rows, got {}", input.num_rows,
                input.tokens->size());
  }
  int64_t behind = input.start;
  for (const VersionRun& run : input.versions) {
    if (run.start < behind || run.end < run.start || run.end > input.start + input.num_rows) {
      return fail(ErrorCode::kOutOfRange,
                  "versions: expected ascending spans within [{}, {}), got [{}, {}) behind {}", input.start,
                  input.start + input.num_rows, run.start, run.end, behind);
    }
    if (run.version > kMaxVersion) {
      return fail(ErrorCode::kInvalidArgument, "version: expected 0 to {}, got {}", kMaxVersion, run.version);
    }
    behind = run.end;
  }
  if (num_sequences_ > 0 && !std::ranges::equal(input.channels, channels_)) {
    const auto names = [](std::span<const Channel> channels) {
      std::vector<std::string> list;
      for (const Channel& channel : channels) {
        list.push_back(fmt::format("{} {}{}", channel.name, channel.dtype, channel.row_shape));
      }
      return list;
    };
    return fail(ErrorCode::kConflict, "channels: expected {}, as the sequences before have them, got {}",
                names(channels_), names(input.channels));
  }
  return {};
}

// The first sequence says which channels there are, and with them how much room the header needs.
Status FileWriter::begin(const SequenceInput& input) {
  if (num_sequences_ > 0) return {};
  channels_.assign(input.channels.begin(), input.channels.end());
  row_spools_ = make_spools(groups_.size() - 1 + channels_.size(), folder_);
  MOETAPE_ASSIGN(header_bytes_, header_bytes());
  return {};
}

Status FileWriter::append_rows(const SequenceInput& input, Facts& facts) {
  const int64_t stream_row_bytes = groups_[0].stored_row_bytes();
  std::vector<uint64_t>& sums = block_checksums_;
  sums.clear();
  for (int64_t first = 0; first < input.num_rows; first += kBlockRows) {
    const int64_t count = std::min(kBlockRows, input.num_rows - first);
    MOETAPE_ASSIGN(const SequenceInput::Rows rows, input.rows(first, count));
    for (size_t i = 0; i < groups_.size(); ++i) {
      const std::span<const std::byte> stored = groups_[i].store(rows.ids, count, scratch_);
      sums.push_back(Checksum::of(stored));
      MOETAPE_TRY(i == 0 ? output_->write(header_bytes_ + num_rows_ * stream_row_bytes, stored)
                         : row_spools_[i - 1].append(stored));
    }
    std::span<const int32_t> tokens;
    if (input.tokens) tokens = input.tokens->subspan(static_cast<size_t>(first), static_cast<size_t>(count));
    sums.push_back(Checksum::of(std::as_bytes(tokens)));
    for (size_t i = 0; i < channels_.size(); ++i) {
      MOETAPE_ASSIGN(const std::byte* data, input.channel_rows(static_cast<int64_t>(i), first, count));
      const std::span bytes(data, static_cast<size_t>(count * channels_[i].row_bytes));
      sums.push_back(Checksum::of(bytes));
      MOETAPE_TRY(row_spools_[groups_.size() - 1 + i].append(bytes));
    }
    facts.valid.resize(static_cast<size_t>(ceil_div(first + count, 8)));
    for (int64_t row = 0; row < count; ++row) {
      const bool valid = rows.reasons[row] == Reason::kValid;
      if (valid) facts.valid[static_cast<size_t>((first + row) / 8)] |= std::byte{1} << ((first + row) % 8);
      any_missing_ |= !valid;
    }
    num_rows_ += count;
    ++num_blocks_;
  }
  facts.block_checksums = std::as_bytes(std::span(sums));
  return small_spools_[kBlockChecksums].append(facts.block_checksums);
}

Status FileWriter::append_facts(const SequenceInput& input, Facts& facts) {
  auto& spools = small_spools_;
  facts.runs = runs_of(input, facts);
  any_tokens_ |= input.tokens.has_value();
  if (input.tokens) {
    facts.token_offset = spools[kTokenValues].size() / int64_t{sizeof(int32_t)};
    MOETAPE_TRY(spools[kTokenValues].append_values(*input.tokens));
  }
  for (const VersionRun& run : facts.runs) {
    MOETAPE_TRY(append_value(spools[kVersionRows], run.start));
    MOETAPE_TRY(append_value(spools[kVersionRows], run.end));
    MOETAPE_TRY(append_value(spools[kVersionIds], run.version));
  }
  num_runs_ += std::ssize(facts.runs);
  MOETAPE_TRY(append_value(spools[kOffsets], facts.end_row));
  MOETAPE_TRY(append_value(spools[kStart], facts.start));
  MOETAPE_TRY(append_value(spools[kBlockOffsets], num_blocks_));
  MOETAPE_TRY(append_value(spools[kTokenOffsets], facts.token_offset));
  MOETAPE_TRY(append_text(spools[kIdBytes], spools[kIdOffsets], facts.id));
  MOETAPE_TRY(append_text(spools[kMetaBytes], spools[kMetaOffsets], facts.meta));
  MOETAPE_TRY(append_bits(facts.valid, facts.num_rows()));
  const uint64_t sum = checksum(facts);
  MOETAPE_TRY(append_value(spools[kSequenceChecksums], sum));
  content_checksum_.add(std::as_bytes(std::span(&sum, 1)));
  return {};
}

Status FileWriter::append_bits(const std::vector<std::byte>& bits, int64_t count) {
  const auto used = static_cast<int>((num_rows_ - count) % 8);  // bits in last_bits_
  std::vector<std::byte> full;
  for (int64_t done = 0; done < count; done += 8) {
    const std::byte next = bits[static_cast<size_t>(done / 8)];
    last_bits_ |= next << used;
    if (used + std::min<int64_t>(8, count - done) < 8) break;
    full.push_back(last_bits_);
    last_bits_ = used == 0 ? std::byte{0} : next >> (8 - used);
  }
  return small_spools_[kValidBits].append(full);
}

FileWriter::Mark FileWriter::mark() const {
  Mark mark{num_rows_, num_blocks_, num_runs_, any_missing_, any_tokens_, last_bits_, {}};
  for (const Spool& spool : row_spools_) mark.sizes.push_back(spool.size());
  for (const Spool& spool : small_spools_) mark.sizes.push_back(spool.size());
  return mark;
}

void FileWriter::go_back(const Mark& mark) {
  num_rows_ = mark.num_rows;
  num_blocks_ = mark.num_blocks;
  num_runs_ = mark.num_runs;
  any_missing_ = mark.any_missing;
  any_tokens_ = mark.any_tokens;
  last_bits_ = mark.last_bits;
  auto size = mark.sizes.begin();
  for (Spool& spool : row_spools_) spool.cut(*size++);
  for (Spool& spool : small_spools_) spool.cut(*size++);
}

std::vector<FileWriter::Planned> FileWriter::plan(bool all) const {
  std::vector<Planned> tensors;
  for (size_t i = 0; i < groups_.size(); ++i) {
    const IdGroup& group = groups_[i];
    tensors.push_back({.info = {group.name(), std::string(group.dtype()), group.shape(num_rows_)},
                       .num_bytes = num_rows_ * group.stored_row_bytes(),
                       .alignment = kAlignment,
                       .spool = i == 0 ? nullptr : &row_spools_[i - 1]});
  }
  for (size_t i = 0; i < channels_.size(); ++i) {
    const Channel& channel = channels_[i];
    std::vector<int64_t> shape = {num_rows_};
    shape.insert(shape.end(), channel.row_shape.begin(), channel.row_shape.end());
    tensors.push_back({.info = {channel.name, channel.dtype, std::move(shape)},
                       .num_bytes = num_rows_ * channel.row_bytes,
                       .alignment = kAlignment,
                       .spool = &row_spools_[groups_.size() - 1 + i]});
  }
  for (int i = 0; i < kNumSmallTensors; ++i) {
    if (!all && !is_needed(static_cast<SmallTensor>(i))) continue;
    const auto& [name, dtype] = small_tensor(static_cast<SmallTensor>(i));
    const Spool& spool = small_spools_[static_cast<size_t>(i)];
    const int64_t element = *dtype_bytes(dtype);
    const int64_t num_bytes = i == kValidBits ? ceil_div(num_rows_, 8) : spool.size();
    std::vector<int64_t> shape = {num_bytes / element};
    if (i == kBlockChecksums) shape = {num_blocks_, std::ssize(groups_) + 1 + std::ssize(channels_)};
    if (i == kVersionRows) shape = {num_runs_, 2};
    tensors.push_back({.info = {std::string(name), std::string(dtype), std::move(shape)},
                       .num_bytes = num_bytes,
                       .alignment = element,
                       .spool = &spool});
  }
  return tensors;
}

bool FileWriter::is_needed(SmallTensor tensor) const {
  switch (tensor) {
    case kVersionRows:
    case kVersionIds:
      return num_runs_ > 0;
    case kTokenOffsets:
    case kTokenValues:
      return any_tokens_;
    case kValidBits:
      return any_missing_;
    default:
      return true;
  }
}

// Room for all tensors there can be, with long numbers, and for padding behind each tensor of rows: those
// behind need none among themselves.
Result<int64_t> FileWriter::header_bytes() const {
  constexpr int64_t kLongest = 999'999'999'999'999;  // bytes of a file
  std::vector<TensorInfo> longest;
  for (const Planned& tensor : plan(true)) {
    TensorInfo& info = longest.emplace_back(tensor.info);
    std::ranges::fill(info.shape, kLongest);
    info.begin = info.end = kLongest;
    if (tensor.alignment == kAlignment) {
      longest.push_back({padding_name(longest.size()), "U8", {kAlignment}, kLongest, kLongest});
    }
  }
  MOETAPE_ASSIGN(const std::string header, format_header(metadata_, longest));
  return std::ssize(header);
}

int64_t FileWriter::most_bytes() const {
  int64_t bytes = header_bytes_;
  for (const Planned& tensor : plan(true)) bytes += tensor.num_bytes + tensor.alignment;
  return bytes;
}

int64_t FileWriter::most_bytes_of(const SequenceInput& input) const {
  int64_t row_bytes = int64_t{sizeof(int32_t)} + 1;  // a token, a bit
  for (const IdGroup& group : groups_) row_bytes += group.stored_row_bytes();
  for (const Channel& channel : input.channels) row_bytes += channel.row_bytes;
  const int64_t num_columns = std::ssize(groups_) + 1 + std::ssize(input.channels);
  const int64_t checksums = ceil_div(input.num_rows, kBlockRows) * num_columns * int64_t{sizeof(uint64_t)};
  constexpr int64_t kFactBytes = 7 * 8;  // offsets, starts and the checksum
  constexpr int64_t kRunBytes = 2 * 8 + 4;
  // Missing rows may cut runs down to single rows.
  const int64_t num_runs = input.versions.empty() ? 0 : input.num_rows;
  return input.num_rows * row_bytes + checksums + kFactBytes + num_runs * kRunBytes + std::ssize(input.id) +
         std::ssize(input.meta);
}

Result<FileWriter::Finished> FileWriter::finish() {
  std::vector<TensorInfo> tensors;
  size_t num_paddings = 0;
  int64_t end = 0;
  for (Planned& tensor : plan(false)) {
    if (const int64_t gap = round_up(end, tensor.alignment) - end; gap > 0) {
      const std::vector<std::byte> zeros(static_cast<size_t>(gap));
      MOETAPE_TRY(output_->write(header_bytes_ + end, zeros));
      tensors.push_back({padding_name(num_paddings++), "U8", {gap}, end, end + gap});
      end += gap;
    }
    if (tensor.spool != nullptr) MOETAPE_TRY(tensor.spool->copy_to(*output_, header_bytes_ + end));
    tensor.info.begin = end;
    end += tensor.num_bytes;
    tensor.info.end = end;
    if (tensor.info.name == kValid && num_rows_ % 8 != 0) {
      MOETAPE_TRY(output_->write(header_bytes_ + end - 1, std::span(&last_bits_, 1)));
    }
    tensors.push_back(std::move(tensor.info));
  }
  MOETAPE_TRY(output_->cut(header_bytes_ + end));
  metadata_.back().second = hex(content_checksum_.value());
  MOETAPE_ASSIGN(const std::string header, format_header(metadata_, tensors, header_bytes_));
  const auto bytes = std::as_bytes(std::span(header));
  MOETAPE_TRY(output_->write(0, bytes));
  MOETAPE_ASSIGN(const size_t checksum_at, find_header_checksum(bytes));
  return Finished{header_bytes_ + end, header.substr(checksum_at, kHexDigits)};
}

}  // namespace moetape::inline v0::tape
