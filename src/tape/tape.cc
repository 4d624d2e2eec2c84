#include "moetape/tape.h"

#include <algorithm>
#include <iterator>

#include "base/fail.h"
#include "base/memory_guard.h"
#include "tape/checksum.h"
#include "tape/index.h"
#include "tape/output.h"
#include "tape/sequence_reader.h"
#include "tape/tape_impl.h"

namespace moetape::inline v0 {

using tape::Facts;
using tape::FileReader;
using tape::SequenceReader;

namespace {

// That a file is the shard that its index means, and one of the others' kind.
Status check_shard(const tape::Shard& shard, const FileReader& file, const FileReader& first) {
  const tape::Shard found{shard.file, file.file().num_bytes, file.num_sequences(), file.num_rows(),
                          file.header_checksum()};
  if (found != shard) {
    return fail(ErrorCode::kCorruptData,
                "{}: expected {} bytes, {} sequences, {} rows and header_xxh3 {}, as its index says, got {}, "
                "{}, {}, {}",
                file.name(), shard.num_bytes, shard.num_sequences, shard.num_rows, shard.header_checksum,
                found.num_bytes, found.num_sequences, found.num_rows, found.header_checksum);
  }
  if (file.description() == first.description() && std::ranges::equal(file.channels(), first.channels()))
    return {};
  return fail(ErrorCode::kCorruptData, "{}: expected the metadata and channels of {}, got others",
              file.name(), first.name());
}

// More files are not held open: a process may have some thousand.
constexpr size_t kMostDescriptors = 64;

// The files that an index names, which stand beside it.
Result<std::vector<std::shared_ptr<const FileReader>>> open_shards(const std::string& path,
                                                                   std::span<const std::byte> bytes) {
  MOETAPE_ASSIGN(const tape::Index index, tape::parse_index(path, bytes));
  MOETAPE_ASSIGN(const tape::Target target, tape::Target::resolve(path));
  std::vector<std::shared_ptr<const FileReader>> files;
  for (const tape::Shard& shard : index.shards) {
    const std::string shard_path = target.folder + "/" + shard.file;
    MOETAPE_ASSIGN(std::shared_ptr<MappedFile> file, tape::map_file(shard_path));
    if (index.shards.size() > kMostDescriptors) file->close_descriptor();
    MOETAPE_ASSIGN(files.emplace_back(), FileReader::open(shard_path, std::move(file)));
    MOETAPE_TRY(check_shard(shard, *files.back(), *files.front()));
  }
  if (const uint64_t found = files.front()->description().spec.fingerprint(); found != index.fingerprint) {
    return fail(ErrorCode::kCorruptData, "{}: expected shards of spec {:016x}, got {:016x}", path,
                index.fingerprint, found);
  }
  return files;
}

}  // namespace

std::string_view codec_name(Codec codec) { return codec == Codec::kNone ? "none" : "bitpack"; }

Result<Codec> codec_from_name(std::string_view name) {
  for (const Codec codec : {Codec::kNone, Codec::kBitpack}) {
    if (name == codec_name(codec)) return codec;
  }
  return fail(ErrorCode::kInvalidArgument, "codec: expected none or bitpack, got {:?}", name);
}

Tape::Impl::Impl(std::string name, std::vector<std::shared_ptr<const FileReader>> files)
    : name_(std::move(name)), files_(std::move(files)) {
  const tape::Description& description = first().description();
  options_ = {.codec = description.codec, .layer_groups = description.layer_groups};
  for (const auto& file : files_) {
    first_sequences_.push_back(num_sequences_);
    num_sequences_ += file->num_sequences();
    num_rows_ += file->num_rows();
    file_list_.push_back(file->file());
    if (files_.size() > 1) {
      options_.max_file_bytes = std::max(options_.max_file_bytes, file->file().num_bytes);
    }
  }
}

Result<Tape::Impl::Place> Tape::Impl::place(int64_t sequence) const {
  if (sequence < 0 || sequence >= num_sequences_) {
    return fail(ErrorCode::kOutOfRange, "{}: sequence: expected one of [0, {}), got {}", name_,
                num_sequences_, sequence);
  }
  const auto behind = std::ranges::upper_bound(first_sequences_, sequence);
  const auto file = static_cast<size_t>(behind - first_sequences_.begin() - 1);
  return Place{files_[file], sequence - first_sequences_[file]};
}

Status Tape::Impl::check_positions(int64_t sequence, const Facts& facts, int64_t start, int64_t end) const {
  if (facts.start <= start && start <= end && end <= facts.end()) return {};
  return fail(ErrorCode::kOutOfRange, "{}: sequence {}: expected positions within [{}, {}), got [{}, {})",
              name_, sequence, facts.start, facts.end(), start, end);
}

const Tape::Impl::Names& Tape::Impl::names() const {
  std::call_once(names_once_, [&] {
    Names names;
    for (int64_t sequence = 0; sequence < num_sequences_; ++sequence) {
      const Result<Place> found = place(sequence);
      const Result<Facts> facts = found->file->read_facts(found->sequence);
      if (facts) {
        names.by_hash.emplace_back(tape::Checksum::of(std::as_bytes(std::span(facts->id))), sequence);
      } else if (names.num_damaged++ == 0) {
        names.first_damaged = sequence;
      }
    }
    std::ranges::sort(names.by_hash);
    names_ = std::move(names);
  });
  return names_;
}

Result<Tape> Tape::open(const std::string& path) {
  return guard_memory(path, [&]() -> Result<Tape> {
    MOETAPE_ASSIGN(const std::shared_ptr<MappedFile> file, tape::map_file(path));
    const std::span bytes(file->data(), static_cast<size_t>(file->size()));
    std::vector<std::shared_ptr<const FileReader>> files;
    if (tape::is_index(bytes)) {
      MOETAPE_ASSIGN(files, open_shards(path, bytes));
    } else {
      MOETAPE_ASSIGN(files.emplace_back(), FileReader::open(path, file));
    }
    return Tape(std::make_shared<const Impl>(path, std::move(files)));
  });
}

Result<Tape> Tape::from_bytes(Buffer bytes, std::string name) {
  MOETAPE_ASSIGN(std::shared_ptr<const FileReader> file, FileReader::from_bytes(std::move(bytes), name));
  return Tape(std::make_shared<const Impl>(std::move(name), std::vector{std::move(file)}));
}

const std::string& Tape::name() const { return impl_->name_; }
const RouteSpec& Tape::spec() const { return impl_->first().description().spec; }
int64_t Tape::num_sequences() const { return impl_->num_sequences_; }
int64_t Tape::num_rows() const { return impl_->num_rows_; }
const TapeOptions& Tape::options() const { return impl_->options_; }
std::span<const TapeFile> Tape::files() const { return impl_->file_list_; }

Result<TapeEntry> Tape::entry(int64_t sequence) const {
  MOETAPE_ASSIGN(const Impl::Place place, impl_->place(sequence));
  return guard_memory(impl_->name_, [&]() -> Result<TapeEntry> {
    MOETAPE_ASSIGN(const std::shared_ptr<const Facts> facts, place.file->facts(place.sequence));
    return TapeEntry{.id = std::string(facts->id),
                     .meta = std::string(facts->meta),
                     .start = facts->start,
                     .end = facts->end(),
                     .num_missing = facts->num_missing,
                     .has_tokens = facts->token_offset >= 0,
                     .versions = facts->versions(facts->start, facts->end())};
  });
}

Result<std::vector<int64_t>> Tape::find(std::string_view id) const {
  return guard_memory(impl_->name_, [&]() -> Result<std::vector<int64_t>> {
    const Impl::Names& names = impl_->names();
    const uint64_t hash = tape::Checksum::of(std::as_bytes(std::span(id)));
    std::vector<int64_t> found;
    for (auto it = std::ranges::lower_bound(names.by_hash, std::pair(hash, int64_t{0}));
         it != names.by_hash.end() && it->first == hash; ++it) {
      MOETAPE_ASSIGN(const TapeEntry entry, this->entry(it->second));
      if (entry.id == id) found.push_back(it->second);
    }
    if (found.empty() && names.num_damaged > 0) {
      return fail(ErrorCode::kCorruptData,
                  "{}: {:?} is the id of no sequence that can be read; {} are damaged, sequence {} first",
                  impl_->name_, id, names.num_damaged, names.first_damaged);
    }
    return found;
  });
}

Result<Routes> Tape::read(int64_t sequence) const {
  MOETAPE_ASSIGN(Impl::Place place, impl_->place(sequence));
  MOETAPE_ASSIGN(SequenceReader reader, SequenceReader::create(std::move(place.file), place.sequence, {}));
  return reader.read(0, reader.facts().num_rows());
}

Result<Routes> Tape::read(int64_t sequence, int64_t start, int64_t end,
                          std::span<const int32_t> layers) const {
  MOETAPE_ASSIGN(Impl::Place place, impl_->place(sequence));
  MOETAPE_ASSIGN(SequenceReader reader,
                 SequenceReader::create(std::move(place.file), place.sequence, layers));
  const Facts& facts = reader.facts();
  MOETAPE_TRY(impl_->check_positions(sequence, facts, start, end));
  return reader.read(start - facts.start, end - facts.start);
}

Result<std::unique_ptr<RowSource>> Tape::rows(int64_t sequence) const {
  MOETAPE_ASSIGN(Impl::Place place, impl_->place(sequence));
  MOETAPE_ASSIGN(SequenceReader reader, SequenceReader::create(std::move(place.file), place.sequence, {}));
  return std::make_unique<tape::TapeSource>(std::move(reader));
}

}  // namespace moetape::inline v0
