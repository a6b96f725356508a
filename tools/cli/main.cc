#include "tools/cli/tools_line.h"
#include "train/process/log.h"
#include "train/process/process.h"

int main(int argc, char** argv) {
  const penstock::Status prepared = penstock::train::PrepareProcess(argv);
  if (!prepared.ok()) return penstock::train::ReportError(prepared.error());
  return penstock::train::RunToolsLine(argc, argv);
}
