#include "run/rows/put_aside.h"

#include <fmt/format.h>

namespace penstock::train {

Status PutAside(const Folder& folder, const std::string& name, const std::string& why,
                const Notify& notify) {
  const std::string aside = name + kAside;
  PENSTOCK_TRY(folder.Replace(name, aside));
  PENSTOCK_TRY(folder.Sync());
  notify(fmt::format("{}; it is {} now, and a new one is begun", why, aside));
  return {};
}

}  // namespace penstock::train
