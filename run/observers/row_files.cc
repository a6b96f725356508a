#include "run/observers/row_files.h"

namespace penstock::train {

Status RowFiles::AfterRow(const ClosedRow& closed) {
  if (curves_ != nullptr) PENSTOCK_TRY(curves_->Append(closed.row, closed.samples));
  return rows_.Append(closed.row);
}

Status RowFiles::SyncRows() {
  PENSTOCK_TRY(rows_.Sync());
  return curves_ != nullptr ? curves_->Sync() : Status();
}

}  // namespace penstock::train
