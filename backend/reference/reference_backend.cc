#include "backend/reference/reference_backend.h"

namespace fathom {

// Scratch is allocated where it is needed: this backend is for checking, not for serving.
Status ReferenceBackend::Prepare(const BackendLimits& /*limits*/) { return OkStatus(); }

}  // namespace fathom
