// Why something is not supported.
#pragma once

#include <optional>
#include <string>

namespace jaxconv {

using Reason = std::optional<std::string>;  // none: it is supported

}  // namespace jaxconv
