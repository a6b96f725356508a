#include "train/cli.h"
#include "train/log.h"
#include "train/process.h"

int main(int argc, char** argv) {
  const penstock::Status prepared = penstock::train::PrepareProcess(argv);
  if (!prepared.ok()) return penstock::train::ReportError(prepared.error());
  return penstock::train::RunCommandLine(argc, argv);
}
