// The fixed parts of the page, made of the files in page/ at build time.
#pragma once

#include <string_view>

namespace moetape::inline v0::report {

struct EmbeddedText {
  std::string_view text;
  std::string_view sha256;  // of the text, in hexadecimal digits
};

extern const EmbeddedText kPage;  // HTML with places to fill: {{title}}, {{style}}, …
extern const EmbeddedText kStyle;
extern const EmbeddedText kScript;

}  // namespace moetape::inline v0::report
