#include "tape/file_reader.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <tuple>

#include "base/checked.h"
#include "base/fail.h"
#include "base/memory_guard.h"
#include "tape/checksum.h"
#include "tape/text.h"

namespace moetape::inline v0::tape {
namespace {

using Tensors = std::map<std::string_view, const TensorInfo*>;

// "padding.0"
bool is_padding(std::string_view name) {
  const auto number = name.substr(std::min(name.size(), kPaddingPrefix.size()));
  return name.starts_with(kPaddingPrefix) && !number.empty() &&
         number.find_first_not_of("0123456789") == std::string_view::npos;
}

std::string shape_text(std::string_view dtype, std::span<const int64_t> shape) {
  return fmt::format("{}[{}]", dtype, fmt::join(shape, ", "));
}

}  // namespace

FileReader::FileReader(Buffer bytes, std::string name, std::shared_ptr<MappedFile> mapped,
                       Description description)
    : bytes_(std::move(bytes)),
      name_(std::move(name)),
      mapped_(std::move(mapped)),
      description_(std::move(description)) {
  const auto num_groups = static_cast<int>(description_.layer_groups.size());
  if (num_groups == 0) groups_.push_back(IdGroup::of(description_, -1));
  for (int group = 0; group < num_groups; ++group) groups_.push_back(IdGroup::of(description_, group));
}

Result<std::shared_ptr<MappedFile>> map_file(const std::string& path) {
  if (path.find('\0') == std::string::npos) return MappedFile::open(path);
  return fail(ErrorCode::kInvalidArgument, "path: expected the name of a file, got {:?}", path);
}

Result<std::shared_ptr<const FileReader>> FileReader::open(std::string path,
                                                           std::shared_ptr<MappedFile> file) {
  Buffer bytes = Buffer::wrap(file->data(), file->size(), file);
  return make(std::move(bytes), std::move(path), std::move(file));
}

Result<std::shared_ptr<const FileReader>> FileReader::from_bytes(Buffer bytes, std::string name) {
  return make(std::move(bytes), std::move(name), nullptr);
}

Result<std::shared_ptr<const FileReader>> FileReader::make(Buffer bytes, std::string name,
                                                           std::shared_ptr<MappedFile> mapped) {
  using Made = Result<std::shared_ptr<const FileReader>>;
  return guard_memory(name, [&]() -> Made {
    const std::span view(bytes.data(), static_cast<size_t>(bytes.size()));
    MOETAPE_ASSIGN(const Header header, parse_header(name, view));
    MOETAPE_ASSIGN(Description description, read_metadata(name, header));
    std::shared_ptr<FileReader> reader(
        new FileReader(std::move(bytes), name, std::move(mapped), std::move(description)));
    MOETAPE_TRY(reader->find_tensors(header));
    return reader;
  });
}

Status FileReader::find_tensors(const Header& header) {
  data_begin_ = header.num_bytes;
  header_checksum_ = header.metadata.find(kHeaderChecksum)->second;
  content_checksum_ = header.metadata.find(kContentChecksum)->second;
  file_.path = mapped_ ? name_ : "";
  file_.num_bytes = bytes_.size();
  Tensors tensors;
  for (const TensorInfo& tensor : header.tensors) {
    tensors.emplace(tensor.name, &tensor);
    file_.tensors.push_back(
        {tensor.name, tensor.dtype, tensor.shape, data_begin_ + tensor.begin, tensor.num_bytes()});
  }
  MOETAPE_TRY(find_row_tensors(tensors));
  MOETAPE_TRY(find_small_tensors(tensors));
  MOETAPE_TRY(check_rest(tensors));
  MOETAPE_TRY(check_sizes());
  return check_ends();
}

Status FileReader::find_row_tensors(Tensors& tensors) {
  const auto first = tensors.find(groups_[0].name());
  if (first != tensors.end() && !first->second->shape.empty()) file_.num_rows = first->second->shape[0];
  for (const IdGroup& group : groups_) {
    const auto found = tensors.find(group.name());
    const std::string expected = shape_text(group.dtype(), group.shape(file_.num_rows));
    const std::string got =
        found == tensors.end() ? "none" : shape_text(found->second->dtype, found->second->shape);
    if (got != expected) {
      return fail(ErrorCode::kCorruptData, "{}: tensor {:?}: expected {}, got {}", name_, group.name(),
                  expected, got);
    }
    MOETAPE_TRY(check_alignment(*found->second, kAlignment));
    row_tensors_.push_back({data_at(found->second->begin), found->second->num_bytes(), true});
    tensors.erase(found);
  }
  for (auto it = tensors.lower_bound(kChannelPrefix);
       it != tensors.end() && it->first.starts_with(kChannelPrefix); it = tensors.erase(it)) {
    const TensorInfo& tensor = *it->second;
    if (tensor.shape.empty() || tensor.shape[0] != file_.num_rows) {
      return fail(ErrorCode::kCorruptData, "{}: tensor {:?}: expected something for each of {} rows, got {}",
                  name_, tensor.name, file_.num_rows, shape_text(tensor.dtype, tensor.shape));
    }
    Channel channel{.name = tensor.name,
                    .dtype = tensor.dtype,
                    .row_shape = {tensor.shape.begin() + 1, tensor.shape.end()},
                    .row_bytes = *dtype_bytes(tensor.dtype)};
    for (const int64_t size : channel.row_shape) {
      const std::optional<int64_t> bytes = checked_multiply(channel.row_bytes, size);
      if (!bytes || *bytes > kMaxChannelRowBytes) {
        return fail(ErrorCode::kCorruptData, "{}: tensor {:?}: expected rows of at most 2^40 bytes, got {}",
                    name_, tensor.name, shape_text(tensor.dtype, tensor.shape));
      }
      channel.row_bytes = *bytes;
    }
    MOETAPE_TRY(check_alignment(tensor, kAlignment));
    row_tensors_.push_back({data_at(tensor.begin), tensor.num_bytes(), true});
    channels_.push_back(std::move(channel));
  }
  return {};
}

Status FileReader::find_small_tensors(Tensors& tensors) {
  for (int i = 0; i < kNumSmallTensors; ++i) {
    const auto& [name, dtype] = small_tensor(static_cast<SmallTensor>(i));
    const auto found = tensors.find(name);
    if (found == tensors.end()) continue;
    const TensorInfo& tensor = *found->second;
    small_[static_cast<size_t>(i)] = {data_at(tensor.begin), tensor.num_bytes() / *dtype_bytes(tensor.dtype),
                                      true};
    tensors.erase(found);
    std::vector<int64_t> expected = {small_[static_cast<size_t>(i)].size};
    if (i == kStart) file_.num_sequences = expected[0];
    if (i == kBlockChecksums) expected = {expected[0] / num_columns(), num_columns()};
    if (i == kVersionRows) expected = {expected[0] / 2, 2};
    if (shape_text(tensor.dtype, tensor.shape) != shape_text(dtype, expected)) {
      return fail(ErrorCode::kCorruptData, "{}: tensor {:?}: expected {}, got {}", name_, name,
                  shape_text(dtype, expected), shape_text(tensor.dtype, tensor.shape));
    }
    MOETAPE_TRY(check_alignment(tensor, *dtype_bytes(dtype)));
  }
  return {};
}

Status FileReader::check_alignment(const TensorInfo& tensor, int64_t alignment) const {
  if (tensor.begin % alignment == 0) return {};
  return fail(ErrorCode::kCorruptData,
              "{}: byte {}: tensor {:?}: expected to begin at a multiple of {} bytes", name_,
              data_begin_ + tensor.begin, tensor.name, alignment);
}

Status FileReader::check_sizes() const {
  const int64_t num_sequences = file_.num_sequences;
  const auto expect = [&](SmallTensor tensor, int64_t size, bool optional = false) -> Status {
    const Tensor& found = small(tensor);
    if (found.there ? found.size == size : optional) return {};
    return fail(ErrorCode::kCorruptData, "{}: tensor {:?}: expected {} elements, got {}", name_,
                small_tensor(tensor).name, size, found.there ? fmt::to_string(found.size) : "none");
  };
  MOETAPE_TRY(expect(kStart, num_sequences));
  for (const SmallTensor offsets : {kOffsets, kBlockOffsets, kIdOffsets, kMetaOffsets}) {
    MOETAPE_TRY(expect(offsets, num_sequences + 1));
  }
  MOETAPE_TRY(expect(kSequenceChecksums, num_sequences));
  MOETAPE_TRY(expect(kValidBits, ceil_div(num_rows(), 8), true));
  MOETAPE_TRY(expect(kTokenOffsets, num_sequences, !small(kTokenValues).there));
  MOETAPE_TRY(expect(kVersionRows, small(kVersionIds).size * 2, !small(kVersionIds).there));
  for (const auto& [one, other] : {std::pair(kTokenOffsets, kTokenValues), {kVersionRows, kVersionIds}}) {
    if (small(one).there && !small(other).there) return expect(other, small(one).size);
  }
  for (const SmallTensor tensor : {kBlockChecksums, kIdBytes, kMetaBytes}) {
    if (!small(tensor).there) return expect(tensor, 0);
  }
  return {};
}

// All that is left is padding.
Status FileReader::check_rest(const Tensors& tensors) const {
  for (const auto& [name, tensor] : tensors) {
    if (!is_padding(name)) {
      return fail(ErrorCode::kUnsupported, "{}: tensor {:?} is not known to this moetape", name_, name);
    }
    const std::span padding(data_at(tensor->begin), static_cast<size_t>(tensor->num_bytes()));
    if (std::ssize(padding) >= kAlignment) {
      return fail(ErrorCode::kCorruptData, "{}: tensor {:?}: expected fewer than {} bytes of padding, got {}",
                  name_, name, kAlignment, padding.size());
    }
    const auto bad = std::ranges::find_if(padding, [](std::byte byte) { return byte != std::byte{0}; });
    if (bad != padding.end()) {
      return fail(ErrorCode::kCorruptData, "{}: byte {}: expected the zeros of padding, got 0x{:02x}", name_,
                  offset_of(&*bad), std::to_integer<int>(*bad));
    }
  }
  return {};
}

// The ends of the offsets, and the unused bits.
Status FileReader::check_ends() const {
  const auto check = [&](SmallTensor offsets, int64_t end) -> Status {
    const int64_t first = small(offsets).at<int64_t>(0);
    const int64_t last = small(offsets).at<int64_t>(num_sequences());
    if (first == 0 && last == end) return {};
    return fail(ErrorCode::kCorruptData,
                "{}: byte {}: {}: expected to begin with 0 and to end with {}, got {} and {}", name_,
                offset_of(small(offsets).data), small_tensor(offsets).name, end, first, last);
  };
  MOETAPE_TRY(check(kOffsets, num_rows()));
  MOETAPE_TRY(check(kBlockOffsets, small(kBlockChecksums).size / num_columns()));
  MOETAPE_TRY(check(kIdOffsets, small(kIdBytes).size));
  MOETAPE_TRY(check(kMetaOffsets, small(kMetaBytes).size));
  if (small(kValidBits).there && num_rows() % 8 != 0) {
    const std::byte* last = small(kValidBits).data + small(kValidBits).size - 1;
    if (std::to_integer<int>(*last) >> num_rows() % 8 != 0) {
      return fail(ErrorCode::kCorruptData, "{}: byte {}: expected zero bits behind {} rows, got 0x{:02x}",
                  name_, offset_of(last), num_rows(), std::to_integer<int>(*last));
    }
  }
  return {};
}

Status FileReader::check_size() const { return mapped_ ? mapped_->check_size() : Status(); }

template <class... Args>
Failure FileReader::damaged(int64_t sequence, fmt::format_string<Args...> format, Args&&... args) const {
  return fail(ErrorCode::kCorruptData, "{}: sequence {}: {}", name_, sequence,
              fmt::format(format, std::forward<Args>(args)...));
}

// Two neighbouring offsets of a sequence, which must lie in order within [0, limit].
Result<std::pair<int64_t, int64_t>> FileReader::part(int64_t sequence, SmallTensor offsets,
                                                     int64_t limit) const {
  const int64_t first = small(offsets).at<int64_t>(sequence);
  const int64_t end = small(offsets).at<int64_t>(sequence + 1);
  if (0 <= first && first <= end && end <= limit) return std::pair(first, end);
  return damaged(sequence, "{} at byte {}: expected two numbers in order within [0, {}], got {} and {}",
                 small_tensor(offsets).name, offset_of(small(offsets).data) + sequence * 8, limit, first,
                 end);
}

Result<std::vector<VersionRun>> FileReader::runs(int64_t sequence, const Facts& facts) const {
  const Tensor& rows = small(kVersionRows);
  int64_t first = 0;  // the first run that ends behind the sequence's begin
  for (int64_t last = small(kVersionIds).size; first < last;) {
    const int64_t middle = first + (last - first) / 2;
    if (rows.at<int64_t>(middle * 2 + 1) <= facts.first_row) {
      first = middle + 1;
    } else {
      last = middle;
    }
  }
  std::vector<VersionRun> runs;
  int64_t behind = facts.first_row;
  for (int64_t i = first; i < small(kVersionIds).size && rows.at<int64_t>(i * 2) < facts.end_row; ++i) {
    const VersionRun run{rows.at<int64_t>(i * 2), rows.at<int64_t>(i * 2 + 1),
                         small(kVersionIds).at<uint32_t>(i)};
    if (run.start < behind || run.end <= run.start || run.end > facts.end_row || run.version > kMaxVersion) {
      return damaged(sequence,
                     "version_rows at byte {}: expected a run within [{}, {}), got [{}, {}) of version {}",
                     offset_of(rows.data) + i * 16, behind, facts.end_row, run.start, run.end, run.version);
    }
    runs.push_back(run);
    behind = run.end;
  }
  return runs;
}

Result<std::shared_ptr<const Facts>> FileReader::facts(int64_t sequence) const {
  using Shared = Result<std::shared_ptr<const Facts>>;
  MOETAPE_TRY(check_size());
  {
    const std::lock_guard lock(last_mutex_);
    if (last_sequence_ == sequence) return last_facts_;
  }
  return guard_memory(name_, [&]() -> Shared {
    MOETAPE_ASSIGN(Facts gathered, gather_facts(sequence));
    auto facts = std::make_shared<const Facts>(std::move(gathered));
    const std::lock_guard lock(last_mutex_);
    last_sequence_ = sequence;
    last_facts_ = facts;
    return facts;
  });
}

Result<Facts> FileReader::read_facts(int64_t sequence) const {
  MOETAPE_TRY(check_size());
  return guard_memory(name_, [&] { return gather_facts(sequence); });
}

Result<Facts> FileReader::gather_facts(int64_t sequence) const {
  Facts facts;
  MOETAPE_ASSIGN(const auto rows, part(sequence, kOffsets, num_rows()));
  std::tie(facts.first_row, facts.end_row) = rows;
  facts.start = small(kStart).at<int64_t>(sequence);
  const int64_t num_blocks = ceil_div(facts.num_rows(), description_.block_rows);
  MOETAPE_ASSIGN(const auto blocks,
                 part(sequence, kBlockOffsets, small(kBlockChecksums).size / num_columns()));
  facts.first_block = blocks.first;
  const auto sum_bytes = num_columns() * int64_t{sizeof(uint64_t)};
  facts.block_checksums = {small(kBlockChecksums).data + blocks.first * sum_bytes,
                           static_cast<size_t>((blocks.second - blocks.first) * sum_bytes)};
  const auto text = [&](SmallTensor offsets, SmallTensor bytes) -> Result<std::string_view> {
    MOETAPE_ASSIGN(const auto place, part(sequence, offsets, small(bytes).size));
    const auto* data = reinterpret_cast<const char*>(small(bytes).data);
    return std::string_view(data + place.first, static_cast<size_t>(place.second - place.first));
  };
  MOETAPE_ASSIGN(facts.id, text(kIdOffsets, kIdBytes));
  MOETAPE_ASSIGN(facts.meta, text(kMetaOffsets, kMetaBytes));
  MOETAPE_ASSIGN(facts.runs, runs(sequence, facts));
  if (small(kTokenOffsets).there) facts.token_offset = small(kTokenOffsets).at<int64_t>(sequence);
  const Tensor& valid = small(kValidBits);
  facts.valid = valid.there ? take_bits({valid.data, static_cast<size_t>(valid.size)}, facts.first_row,
                                        facts.num_rows())
                            : all_ones(facts.num_rows());
  facts.num_missing = facts.count_missing();

  const uint64_t expected = small(kSequenceChecksums).at<uint64_t>(sequence);
  if (const uint64_t found = checksum(facts); !same_checksum(found, expected)) {
    return damaged(
        sequence,
        "rows [{}, {}): what is said of it is damaged: its checksum at byte {} is {}, and should be {}",
        facts.first_row, facts.end_row, offset_of(small(kSequenceChecksums).data) + sequence * 8,
        hex(expected), hex(found));
  }
  if (facts.start < 0 || !checked_add(facts.start, facts.num_rows())) {
    return damaged(sequence, "expected positions from 0 to 2^63, got {} rows from {}", facts.num_rows(),
                   facts.start);
  }
  if (blocks.second - blocks.first != num_blocks) {
    return damaged(sequence, "expected {} blocks of {} rows, got {}", num_blocks, description_.block_rows,
                   blocks.second - blocks.first);
  }
  const int64_t most_tokens = small(kTokenValues).size - facts.num_rows();
  if (facts.token_offset < -1 || (facts.token_offset >= 0 && facts.token_offset > most_tokens)) {
    return damaged(sequence, "token_offsets: expected -1 to {}, got {}", most_tokens, facts.token_offset);
  }
  for (const VersionRun& run : facts.num_missing > 0 ? facts.runs : std::vector<VersionRun>()) {
    for (int64_t row = run.start; row < run.end; ++row) {
      if (!facts.is_valid(row - facts.first_row)) {
        return damaged(sequence, "row {}: expected a row that is there under version {}, got a missing one",
                       row, run.version);
      }
    }
  }
  for (const std::string_view said : {facts.id, facts.meta}) {
    if (const Status status = check_utf8("its texts", said); !status) {
      return damaged(sequence, "{}", status.error().message);
    }
  }
  return facts;
}

int64_t FileReader::row_bytes(int64_t column) const {
  if (column < token_column()) return groups_[static_cast<size_t>(column)].stored_row_bytes();
  if (column == token_column()) return sizeof(int32_t);
  return channels_[static_cast<size_t>(column - token_column() - 1)].row_bytes;
}

const std::byte* FileReader::rows(const Facts& facts, int64_t column, int64_t first) const {
  if (column == token_column())
    return small(kTokenValues).data + (facts.token_offset + first) * int64_t{sizeof(int32_t)};
  const auto tensor = static_cast<size_t>(column < token_column() ? column : column - 1);
  return row_tensors_[tensor].data + (facts.first_row + first) * row_bytes(column);
}

Status FileReader::check_blocks(int64_t sequence, const Facts& facts, int64_t column, int64_t first,
                                int64_t end) const {
  if (first >= end) return {};
  const int64_t block_rows = description_.block_rows;
  for (int64_t block = first / block_rows; block <= (end - 1) / block_rows; ++block) {
    const int64_t begin = block * block_rows;
    const int64_t count = std::min(block_rows, facts.num_rows() - begin);
    const bool nothing = column == token_column() && facts.token_offset < 0;
    const std::byte* data = nothing ? nullptr : rows(facts, column, begin);
    const std::span bytes(data, nothing ? 0 : static_cast<size_t>(count * row_bytes(column)));
    const int64_t index = (facts.first_block + block) * num_columns() + column;
    const auto expected = small(kBlockChecksums).at<uint64_t>(index);
    const uint64_t found = Checksum::of(bytes);
    if (same_checksum(found, expected)) continue;
    const std::string_view tensor =
        column < token_column() ? std::string_view(groups_[static_cast<size_t>(column)].name())
        : column == token_column()
            ? kTokens
            : std::string_view(channels_[static_cast<size_t>(column - token_column() - 1)].name);
    return damaged(sequence,
                   "{}, rows [{}, {}), bytes {} to {} of the file: damaged: the checksum at byte {} is {}, "
                   "and should be {}",
                   tensor, begin, begin + count, nothing ? 0 : offset_of(data),
                   nothing ? 0 : offset_of(data) + std::ssize(bytes),
                   offset_of(small(kBlockChecksums).data) + index * 8, hex(expected), hex(found));
  }
  return {};
}

std::vector<Error> FileReader::check_between() const {
  std::vector<Error> errors;
  const Tensor& sums = small(kSequenceChecksums);
  const std::string content =
      hex(Checksum::of({sums.data, static_cast<size_t>(sums.size) * sizeof(uint64_t)}));
  if (!same_checksum(content, content_checksum_)) {
    errors.push_back(fail(ErrorCode::kCorruptData, "{}: {} should be {}, and is {:?}", name_,
                          kContentChecksum, content, content_checksum_)
                         .value());
  }
  int64_t num_runs = 0;
  int64_t num_tokens = 0;
  for (int64_t sequence = 0; sequence < num_sequences(); ++sequence) {
    const Result<Facts> facts = read_facts(sequence);
    if (!facts) return errors;  // which is an error of the sequence, and makes the sums meaningless
    num_runs += std::ssize(facts->runs);
    if (facts->token_offset < 0) continue;
    if (facts->token_offset != num_tokens) {
      errors.push_back(
          damaged(sequence, "token_offsets: expected {}, got {}", num_tokens, facts->token_offset).value());
    }
    num_tokens += facts->num_rows();
  }
  if (num_runs != small(kVersionIds).size || num_tokens != small(kTokenValues).size) {
    errors.push_back(
        fail(ErrorCode::kCorruptData,
             "{}: expected {} version runs and {} tokens, as the sequences have them, got {} and {}", name_,
             num_runs, num_tokens, small(kVersionIds).size, small(kTokenValues).size)
            .value());
  }
  return errors;
}

}  // namespace moetape::inline v0::tape
