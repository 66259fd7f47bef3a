#include "backend/plugin/plugin_call.h"

namespace fathom::plugin {
namespace {

// kInternal for codes that the interface does not have.
StatusCode CodeOf(FathomStatus code) {
  switch (code) {
    case FATHOM_INVALID_ARGUMENT:
      return StatusCode::kInvalidArgument;
    case FATHOM_OUT_OF_MEMORY:
      return StatusCode::kOutOfMemory;
    case FATHOM_DATA_LOSS:
      return StatusCode::kDataLoss;
    case FATHOM_UNIMPLEMENTED:
      return StatusCode::kUnimplemented;
    case FATHOM_UNAVAILABLE:
      return StatusCode::kUnavailable;
    default:
      return StatusCode::kInternal;
  }
}

}  // namespace

Status ToStatus(const std::string& where, FathomStatus code, FathomError& error) {
  error.message[FATHOM_MESSAGE_BYTES - 1] = '\0';
  std::string message = error.message;
  for (char& c : message) {
    if (c < ' ' || c >= 0x7F) c = '?';
  }
  if (code < FATHOM_INVALID_ARGUMENT || code > FATHOM_INTERNAL) {
    message = "status " + std::to_string(code) + ", which the interface does not have" +
              (message.empty() ? "" : ": " + message);
  } else if (message.empty()) {
    message = "failed and does not say why";
  }
  return {CodeOf(code), where + ": " + message};
}

}  // namespace fathom::plugin
