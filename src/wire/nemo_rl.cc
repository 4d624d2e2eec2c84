// NeMo-RL: "nrlre1:<dtype>:<S>x<L>x<K>:<base64>", signed ids; -1 in all ids of a row says that it is missing.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "base/fail.h"
#include "wire/base64_reader.h"
#include "wire/decoder.h"
#include "wire/dialect.h"
#include "wire/marks.h"
#include "wire/place.h"
#include "wire/types.h"

namespace moetape::inline v0::wire {
namespace {

struct Head {
  IntType type = IntType::kInt8;
  std::array<int64_t, 3> shape{};
  size_t size = 0;  // characters
};

class HeadParser {
 public:
  HeadParser(const DialectInfo& info, std::string_view text) : info_(info), text_(text) {}

  Result<Head> parse() {
    Head head;
    if (!text_.starts_with(kNemoRlMark)) {
      const auto differs = std::ranges::mismatch(text_, kNemoRlMark).in1;
      next_ = static_cast<size_t>(differs - text_.begin());
      return unexpected(fmt::format("the magic {}", kNemoRlMark));
    }
    next_ = kNemoRlMark.size();
    const std::string_view name = text_.substr(next_, text_.find(':', next_) - next_);
    const std::optional<IntType> type = type_from_name(name);
    if (!type) {
      return fail(ErrorCode::kWrongType, "{}: dtype: expected {}, got {:?}", info_.name,
                  type_names(info_.types), name.substr(0, kMostShown));
    }
    head.type = *type;
    next_ += name.size();
    MOETAPE_TRY(expect(':'));
    for (size_t i = 0; i < head.shape.size(); ++i) {
      if (i > 0) MOETAPE_TRY(expect('x'));
      MOETAPE_ASSIGN(head.shape[i], dimension());
    }
    MOETAPE_TRY(expect(':'));
    head.size = next_;
    return head;
  }

 private:
  Status expect(char character) {
    if (next_ >= text_.size() || text_[next_] != character) return unexpected(fmt::format("'{}'", character));
    ++next_;
    return {};
  }

  Result<int64_t> dimension() {
    int64_t dimension = -1;
    const char* const begin = text_.data() + next_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), dimension);
    const bool padded = end - begin > 1 && *begin == '0';
    if (error != std::errc() || dimension < 0 || padded) return unexpected("a dimension below 2^63");
    next_ += static_cast<size_t>(end - begin);
    return dimension;
  }

  Failure unexpected(std::string_view expected) const {
    return fail(ErrorCode::kCorruptData, "{}: character {}: expected {}, got {}", info_.name, next_, expected,
                shown_at(text_, next_));
  }

  const DialectInfo& info_;
  std::string_view text_;
  size_t next_ = 0;
};

}  // namespace

std::vector<Form> nemo_rl_forms(const Wanted& wanted) {
  return {{.axis = wanted.axis,
           .type = wanted.type,
           .num_rows = wanted.num_rows,
           .says_missing = true,
           .before = fmt::format("{}{}:{}:", kNemoRlMark, int_type_name(wanted.type),
                                 fmt::join(wanted.shape(), "x"))}};
}

Result<OpenForm> open_nemo_rl(const Traits& traits, std::string_view text, const RouteSpec& spec,
                              const DecodeOptions& options) {
  MOETAPE_ASSIGN(const Head head, HeadParser(traits.info, text).parse());
  MOETAPE_TRY(check_type(traits.info, head.type, options));
  MOETAPE_ASSIGN(const LayerAxis axis, axis_of(traits.info, spec, head.shape));
  MOETAPE_ASSIGN(Base64Reader reader, Base64Reader::create(traits.name(), text.substr(head.size), head.size));
  const Arrival arrival{.dialect = traits.name(),
                        .axis = axis,
                        .type = head.type,
                        .num_rows = head.shape[0],
                        .says_missing = true};
  return OpenForm{std::make_unique<Base64Reader>(std::move(reader)), arrival};
}

}  // namespace moetape::inline v0::wire
