#include "wire/base64_reader.h"

#include <algorithm>
#include <cstring>

#include "base/fail.h"
#include "simd/base64.h"
#include "wire/place.h"

namespace moetape::inline v0::wire {

Result<Base64Reader> Base64Reader::create(std::string_view thing, std::string_view text, size_t offset) {
  Base64Reader reader(thing, text, offset);
  if (text.size() % 4 != 0) return reader.bad_character(text.size());
  if (text.empty()) return reader;
  // The last group says how many bytes there are.
  std::array<std::byte, 3> group;
  const size_t last = text.size() - 4;
  const simd::Base64Decoded decoded = simd::base64_decode(group.data(), text.data() + last, 4);
  if (decoded.bad_position >= 0)
    return reader.bad_character(last + static_cast<size_t>(decoded.bad_position));
  reader.remaining_ = static_cast<int64_t>(last / 4 * 3 + decoded.bytes);
  return reader;
}

Result<const std::byte*> Base64Reader::next(int64_t bytes, std::byte* scratch) {
  std::byte* out = scratch;
  remaining_ -= bytes;
  const int64_t kept = std::min(bytes, num_rest_);
  std::copy_n(rest_.end() - num_rest_, kept, out);
  num_rest_ -= kept;
  out += kept;
  bytes -= kept;

  const int64_t whole = bytes / 3 * 3;
  if (whole > 0) MOETAPE_TRY(decode(out, static_cast<size_t>(whole / 3 * 4), static_cast<size_t>(whole)));
  bytes -= whole;
  if (bytes > 0) MOETAPE_TRY(begin_group(bytes, out + whole));
  return scratch;
}

Status Base64Reader::skip(int64_t bytes) {
  remaining_ -= bytes;
  const int64_t kept = std::min(bytes, num_rest_);
  num_rest_ -= kept;
  bytes -= kept;
  next_ += static_cast<size_t>(bytes / 3 * 4);
  std::array<std::byte, 3> skipped;
  return bytes % 3 == 0 ? Status() : begin_group(bytes % 3, skipped.data());
}

Result<const std::byte*> Base64Reader::next_behind(int64_t skipped, int64_t bytes, std::byte* scratch) {
  constexpr size_t kChars = 64;  // that are decoded at once, where there are so many
  const int64_t first = static_cast<int64_t>(next_) / 4 * 3 - num_rest_ + skipped;
  const int64_t end = first + bytes;
  const int64_t lead = first % 3;
  const auto begin_char = static_cast<size_t>(first / 3 * 4);
  const auto chars = static_cast<size_t>((end + 2) / 3 * 4) - begin_char;
  const size_t rounded = (chars + kChars - 1) / kChars * kChars;
  if (begin_char + rounded + 4 > text_.size()) return ByteReader::next_behind(skipped, bytes, scratch);

  // Whoever skips goes on at this pace, over more than a processor follows by itself.
  const size_t ahead = begin_char + 4 * static_cast<size_t>((skipped + bytes) / 3 * 4);
  for (size_t at = ahead; at < std::min(ahead + rounded, text_.size()); at += 64) {
    __builtin_prefetch(text_.data() + at);
  }
  next_ = begin_char;
  MOETAPE_TRY(decode(scratch, rounded, rounded / 4 * 3));
  next_ = begin_char + chars;
  num_rest_ = (3 - end % 3) % 3;
  std::copy_n(scratch + lead + bytes, num_rest_, rest_.end() - num_rest_);
  remaining_ -= skipped + bytes;
  return scratch + lead;
}

Status Base64Reader::begin_group(int64_t bytes, std::byte* out) {
  const int64_t group = std::min<int64_t>(bytes + remaining_, 3);
  MOETAPE_TRY(decode(rest_.data(), 4, static_cast<size_t>(group)));
  std::copy_n(rest_.begin(), bytes, out);
  num_rest_ = group - bytes;
  std::copy_backward(rest_.begin() + bytes, rest_.begin() + group, rest_.end());
  return {};
}

Status Base64Reader::decode(std::byte* out, size_t chars, size_t expected_bytes) {
  const simd::Base64Decoded decoded = simd::base64_decode(out, text_.data() + next_, chars);
  if (decoded.bad_position >= 0) return bad_character(next_ + static_cast<size_t>(decoded.bad_position));
  // A part that is good by itself may still end with a padding that does not stand at the text's end.
  if (decoded.bytes != expected_bytes) return bad_character(text_.find('=', next_));
  next_ += chars;
  return {};
}

Failure Base64Reader::bad_character(size_t position) const {
  return fail(ErrorCode::kCorruptData, "{}: character {}: expected base64, got {}", thing_,
              offset_ + position, shown_at(text_, position));
}

}  // namespace moetape::inline v0::wire
