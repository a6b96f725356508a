#include "aio/uring_facts.h"

#include <liburing.h>

#include <array>
#include <utility>

namespace penstock::aio {
namespace {

/// Bits of io_uring_params::features, by their place (io_uring_setup(2)). Those of kernels that are
/// newer than the header have numbers in place of names.
constexpr std::array kFeatureNames = {
    "single_mmap", "nodrop",      "submit_stable",   "rw_cur_pos",   "cur_personality",
    "fast_poll",   "poll_32bits", "sqpoll_nonfixed", "ext_arg",      "native_workers",
    "rsrc_tags",   "cqe_skip",    "linked_file",     "reg_reg_ring", "recvsend_bundle",
    "min_timeout", "rw_attr",     "no_iowait"};

std::vector<std::string> NamesOf(unsigned features) {
  std::vector<std::string> names;
  for (unsigned bit = 0; bit < 32; ++bit) {
    if ((features >> bit & 1U) == 0) continue;
    names.push_back(bit < kFeatureNames.size() ? kFeatureNames[bit] : "bit " + std::to_string(bit));
  }
  return names;
}

}  // namespace

UringFacts ReadUringFacts() {
  io_uring ring{};
  io_uring_params params{};
  const int result = io_uring_queue_init_params(1, &ring, &params);
  if (result < 0) return {.error_number = -result};
  io_uring_queue_exit(&ring);
  return {.features = NamesOf(params.features)};
}

}  // namespace penstock::aio
