// Vector methods: W. Muła and D. Lemire, "Faster Base64 Encoding and Decoding Using AVX2 Instructions"
// (arXiv 1704.00605) and "Base64 encoding and decoding at almost the speed of a memory copy" (1910.05109).
#include "simd/base64.h"

#include "simd/targets.h"  // before Highway

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "simd/base64.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
#include "simd/plain.h"

HWY_BEFORE_NAMESPACE();
namespace moetape::inline v0::simd::HWY_NAMESPACE {

// Beyond the caches, the processor's own guesses leave a fifth of the speed behind.
HWY_INLINE void prefetch(const void* read, const void* written) {
  constexpr size_t kAhead = 1024;
  __builtin_prefetch(static_cast<const char*>(read) + kAhead);
  __builtin_prefetch(static_cast<const char*>(written) + kAhead, 1);
}

// What the vectors of a target do: whole blocks only, as many as can be read and written without touching
// memory behind the end. The decoder stops before a block that holds anything but digits; padding, rest and
// errors are the plain code's.
struct Progress {
  size_t read = 0;
  size_t written = 0;
};

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL

// One 64-bit group: bytes b1 b0 b2 b1 of each three, so that every digit can be shifted out.
HWY_INLINE Progress encode_blocks(char* out, const std::byte* in, size_t bytes) {
  alignas(64) static constexpr char kAlphabet[65] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const __m512i alphabet = _mm512_load_si512(kAlphabet);
  const __m512i shifts = _mm512_set1_epi64(0x3036242a1016040a);
  const __m512i order = _mm512_setr_epi32(
      0x01020001, 0x04050304, 0x07080607, 0x0a0b090a, 0x0d0e0c0d, 0x10110f10, 0x13141213, 0x16171516,
      0x191a1819, 0x1c1d1b1c, 0x1f201e1f, 0x22232122, 0x25262425, 0x28292728, 0x2b2c2a2b, 0x2e2f2d2e);
  Progress done;
  for (; bytes - done.read >= 64; done.read += 48, done.written += 64) {
    prefetch(in + done.read, out + done.written);
    const __m512i groups = _mm512_permutexvar_epi8(order, _mm512_loadu_si512(in + done.read));
    const __m512i digits = _mm512_multishift_epi64_epi8(shifts, groups);
    _mm512_storeu_si512(out + done.written, _mm512_permutexvar_epi8(digits, alphabet));
  }
  return done;
}

// 0x80 where a character is no digit.
struct DigitTable {
  alignas(64) char digits[128];
  constexpr DigitTable() : digits() {
    for (char& digit : digits) digit = static_cast<char>(0x80);
    for (int i = 0; i < 26; ++i) {
      digits['A' + i] = static_cast<char>(i);
      digits['a' + i] = static_cast<char>(26 + i);
    }
    for (int i = 0; i < 10; ++i) digits['0' + i] = static_cast<char>(52 + i);
    digits[int{'+'}] = 62;
    digits[int{'/'}] = 63;
  }
};

HWY_INLINE Progress decode_blocks(std::byte* out, const char* in, size_t chars) {
  static constexpr DigitTable kTable;
  const __m512i low = _mm512_load_si512(kTable.digits);
  const __m512i high = _mm512_load_si512(kTable.digits + 64);
  const __m512i order =
      _mm512_setr_epi32(0x06000102, 0x090a0405, 0x0c0d0e08, 0x16101112, 0x191a1415, 0x1c1d1e18, 0x26202122,
                        0x292a2425, 0x2c2d2e28, 0x36303132, 0x393a3435, 0x3c3d3e38, 0, 0, 0, 0);
  Progress done;
  for (; chars - done.read >= 64; done.read += 64, done.written += 48) {
    prefetch(in + done.read, out + done.written);
    const __m512i text = _mm512_loadu_si512(in + done.read);
    const __m512i digits = _mm512_permutex2var_epi8(low, text, high);
    if (_mm512_movepi8_mask(_mm512_or_si512(text, digits)) != 0) break;
    const __m512i pairs = _mm512_maddubs_epi16(digits, _mm512_set1_epi32(0x01400140));
    const __m512i groups = _mm512_madd_epi16(pairs, _mm512_set1_epi32(0x00011000));
    const __m512i packed = _mm512_permutexvar_epi8(order, groups);
    _mm512_mask_storeu_epi8(out + done.written, (uint64_t{1} << 48) - 1, packed);
  }
  return done;
}

#elif HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2

HWY_INLINE __m256i twice(char a, char b, char c, char d, char e, char f, char g, char h, char i, char j,
                         char k, char l, char m, char n, char o, char p) {
  return _mm256_broadcastsi128_si256(_mm_setr_epi8(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p));
}

HWY_INLINE Progress encode_blocks(char* out, const std::byte* in, size_t bytes) {
  const __m256i order = twice(1, 0, 2, 1, 4, 3, 5, 4, 7, 6, 8, 7, 10, 9, 11, 10);
  constexpr char kDigitStep = '0' - 52;
  const __m256i steps =
      twice('a' - 26, kDigitStep, kDigitStep, kDigitStep, kDigitStep, kDigitStep, kDigitStep, kDigitStep,
            kDigitStep, kDigitStep, kDigitStep, '+' - 62, '/' - 63, 'A', 0, 0);
  Progress done;
  for (; bytes - done.read >= 28; done.read += 24, done.written += 32) {
    prefetch(in + done.read, out + done.written);
    const auto* from = reinterpret_cast<const __m128i*>(in + done.read);
    const auto* second = reinterpret_cast<const __m128i*>(in + done.read + 12);
    const __m256i triples =
        _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(from)), _mm_loadu_si128(second), 1);
    const __m256i groups = _mm256_shuffle_epi8(triples, order);
    const __m256i odd = _mm256_mulhi_epu16(_mm256_and_si256(groups, _mm256_set1_epi32(0x0fc0fc00)),
                                           _mm256_set1_epi32(0x04000040));
    const __m256i even = _mm256_mullo_epi16(_mm256_and_si256(groups, _mm256_set1_epi32(0x003f03f0)),
                                            _mm256_set1_epi32(0x01000010));
    const __m256i digits = _mm256_or_si256(odd, even);
    const __m256i capital = _mm256_cmpgt_epi8(_mm256_set1_epi8(26), digits);
    const __m256i kind = _mm256_or_si256(_mm256_subs_epu8(digits, _mm256_set1_epi8(51)),
                                         _mm256_and_si256(capital, _mm256_set1_epi8(13)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + done.written),
                        _mm256_add_epi8(_mm256_shuffle_epi8(steps, kind), digits));
  }
  return done;
}

HWY_INLINE Progress decode_blocks(std::byte* out, const char* in, size_t chars) {
  const __m256i low_bad =
      twice(0x15, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x13, 0x1A, 0x1B, 0x1B, 0x1B, 0x1A);
  const __m256i high_bad =
      twice(0x10, 0x10, 0x01, 0x02, 0x04, 0x08, 0x04, 0x08, 0x10, 0x10, 0x10, 0x10, 0x10, 0x10, 0x10, 0x10);
  const __m256i steps = twice(0, 16, 19, 4, -65, -65, -71, -71, 0, 0, 0, 0, 0, 0, 0, 0);
  const __m256i order = twice(2, 1, 0, 6, 5, 4, 10, 9, 8, 14, 13, 12, -1, -1, -1, -1);
  const __m256i slash = _mm256_set1_epi8('/');  // 0x2F: also the mask that leaves a nibble to a shuffle
  Progress done;
  for (; chars - done.read >= 48; done.read += 32, done.written += 24) {
    prefetch(in + done.read, out + done.written);
    const __m256i text = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + done.read));
    const __m256i high = _mm256_and_si256(_mm256_srli_epi32(text, 4), slash);
    const __m256i low = _mm256_and_si256(text, slash);
    if (!_mm256_testz_si256(_mm256_shuffle_epi8(high_bad, high), _mm256_shuffle_epi8(low_bad, low))) break;
    const __m256i kind = _mm256_add_epi8(_mm256_cmpeq_epi8(text, slash), high);
    const __m256i digits = _mm256_add_epi8(text, _mm256_shuffle_epi8(steps, kind));
    const __m256i pairs = _mm256_maddubs_epi16(digits, _mm256_set1_epi32(0x01400140));
    const __m256i groups = _mm256_madd_epi16(pairs, _mm256_set1_epi32(0x00011000));
    const __m256i packed = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(groups, order),
                                                       _mm256_setr_epi32(0, 1, 2, 4, 5, 6, 7, 7));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + done.written), packed);
  }
  return done;
}

#else

HWY_INLINE Progress encode_blocks(char*, const std::byte*, size_t) { return {}; }
HWY_INLINE Progress decode_blocks(std::byte*, const char*, size_t) { return {}; }

#endif

size_t Base64Encode(char* out, const std::byte* in, size_t bytes) {
  const Progress done = encode_blocks(out, in, bytes);
  return done.written + plain::base64_encode(out + done.written, in + done.read, bytes - done.read);
}

Base64Decoded Base64Decode(std::byte* out, const char* in, size_t chars) {
  const Progress done = decode_blocks(out, in, chars);
  Base64Decoded rest = plain::base64_decode(out + done.written, in + done.read, chars - done.read);
  rest.bytes += done.written;
  if (rest.bad_position >= 0) rest.bad_position += static_cast<int64_t>(done.read);
  return rest;
}

}  // namespace moetape::inline v0::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moetape::inline v0::simd {

HWY_EXPORT(Base64Encode);
HWY_EXPORT(Base64Decode);

size_t base64_encode(char* out, const std::byte* in, size_t bytes) {
  return HWY_DYNAMIC_DISPATCH(Base64Encode)(out, in, bytes);
}

Base64Decoded base64_decode(std::byte* out, const char* in, size_t chars) {
  return HWY_DYNAMIC_DISPATCH(Base64Decode)(out, in, chars);
}

}  // namespace moetape::inline v0::simd
#endif  // HWY_ONCE
