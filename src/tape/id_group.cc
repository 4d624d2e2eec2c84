#include "tape/id_group.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>

#include "simd/bitpack.h"

namespace moetape::inline v0::tape {
namespace {

// Joins moves of neighbours.
void add_move(std::vector<IdGroup::Move>& moves, IdGroup::Move move) {
  if (!moves.empty() && moves.back().from + moves.back().bytes == move.from &&
      moves.back().to + moves.back().bytes == move.to) {
    moves.back().bytes += move.bytes;
  } else {
    moves.push_back(move);
  }
}

void move_rows(const std::byte* from, int64_t from_row_bytes, std::byte* to, int64_t to_row_bytes,
               int64_t count, std::span<const IdGroup::Move> moves) {
  for (int64_t row = 0; row < count; ++row, from += from_row_bytes, to += to_row_bytes) {
    for (const IdGroup::Move& move : moves) {
      std::memcpy(to + move.to, from + move.from, static_cast<size_t>(move.bytes));
    }
  }
}

std::byte* room(std::vector<std::byte>& scratch, int64_t bytes) {
  if (std::ssize(scratch) < bytes) scratch.resize(static_cast<size_t>(bytes));
  return scratch.data();
}

}  // namespace

IdGroup IdGroup::of(const Description& description, int group) {
  const RouteSpec& spec = description.spec;
  IdGroup made;
  made.name_ = ids_name(group, codec_name(description.codec));
  made.codec_ = description.codec;
  made.top_k_ = spec.top_k();
  made.id_bytes_ = spec.id_bytes();
  made.id_bits_ = simd::id_bits(spec.num_experts());
  if (group < 0) {
    made.columns_.resize(spec.layers().size());
    std::iota(made.columns_.begin(), made.columns_.end(), 0);
  } else {
    for (const int32_t layer : description.layer_groups[static_cast<size_t>(group)]) {
      made.columns_.push_back(
          static_cast<int32_t>(std::ranges::lower_bound(spec.layers(), layer) - spec.layers().begin()));
    }
  }
  made.whole_row_ = made.columns_.size() == spec.layers().size();
  const int64_t num_ids = std::ssize(made.columns_) * spec.top_k();
  made.full_row_bytes_ = spec.row_bytes();
  made.row_bytes_ = num_ids * spec.id_bytes();
  made.stored_row_bytes_ =
      made.codec_ == Codec::kNone ? made.row_bytes_ : simd::packed_row_bytes(num_ids, made.id_bits_);
  return made;
}

std::string_view IdGroup::dtype() const { return codec_ == Codec::kNone && id_bytes_ == 2 ? "U16" : "U8"; }

std::vector<int64_t> IdGroup::shape(int64_t num_rows) const {
  if (codec_ == Codec::kNone) return {num_rows, std::ssize(columns_), top_k_};
  return {num_rows, stored_row_bytes_};
}

std::span<const std::byte> IdGroup::store(const std::byte* rows, int64_t count,
                                          std::vector<std::byte>& scratch) const {
  const int64_t stored_bytes = count * stored_row_bytes_;
  const bool packs = codec_ == Codec::kBitpack;
  if (!whole_row_) {
    // Packed rows stand behind the gathered ones.
    std::byte* gathered = room(scratch, count * row_bytes_ + (packs ? stored_bytes : 0));
    std::vector<Move> moves;
    const int64_t list_bytes = int64_t{top_k_} * id_bytes_;
    for (size_t i = 0; i < columns_.size(); ++i) {
      add_move(moves, {columns_[i] * list_bytes, static_cast<int64_t>(i) * list_bytes, list_bytes});
    }
    move_rows(rows, full_row_bytes_, gathered, row_bytes_, count, moves);
    rows = gathered;
  }
  if (!packs) return {rows, static_cast<size_t>(stored_bytes)};
  std::byte* packed = whole_row_ ? room(scratch, stored_bytes) : scratch.data() + count * row_bytes_;
  simd::bitpack(packed, rows, id_bytes_, id_bits_, row_bytes_ / id_bytes_, count);
  return {packed, static_cast<size_t>(stored_bytes)};
}

int IdGroup::spare_bits() const {
  return codec_ == Codec::kNone ? 0
                                : static_cast<int>(stored_row_bytes_ * 8 - row_bytes_ / id_bytes_ * id_bits_);
}

std::vector<IdGroup::Move> IdGroup::moves_to(std::span<const int32_t> wanted) const {
  const int64_t list_bytes = int64_t{top_k_} * id_bytes_;
  std::vector<Move> moves;
  for (size_t i = 0; i < columns_.size(); ++i) {
    const auto found = std::ranges::lower_bound(wanted, columns_[i]);
    if (found == wanted.end() || *found != columns_[i]) continue;
    add_move(moves,
             {static_cast<int64_t>(i) * list_bytes, (found - wanted.begin()) * list_bytes, list_bytes});
  }
  return moves;
}

void IdGroup::restore(const std::byte* stored, int64_t count, std::span<const Move> moves, std::byte* rows,
                      int64_t row_bytes, std::vector<std::byte>& scratch) const {
  const bool fills_rows = moves.size() == 1 && moves[0].bytes == row_bytes && row_bytes == row_bytes_;
  if (codec_ == Codec::kBitpack) {
    std::byte* unpacked = fills_rows ? rows : room(scratch, count * row_bytes_);
    simd::bitunpack(unpacked, stored, id_bytes_, id_bits_, row_bytes_ / id_bytes_, count);
    stored = unpacked;
  }
  if (!fills_rows) {
    move_rows(stored, row_bytes_, rows, row_bytes, count, moves);
  } else if (codec_ == Codec::kNone) {
    std::memcpy(rows, stored, static_cast<size_t>(count * row_bytes));
  }
}

}  // namespace moetape::inline v0::tape
