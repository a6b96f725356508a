#include "run/observers/step_spans.h"

#include <fmt/format.h>

namespace penstock::train {

Status StepSpans::AfterRow(const ClosedRow& closed) {
  trace_.Add(steps_, fmt::format("step {}", closed.row.step), closed.begin, closed.end);
  return {};
}

}  // namespace penstock::train
