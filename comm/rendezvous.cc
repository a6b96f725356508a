#include "comm/rendezvous.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <string_view>
#include <utility>

#include "base/token.h"
#include "comm/pmix.h"

namespace penstock::comm {
namespace {

/// Listens at the first endpoint whose port is free.
Result<std::vector<Listener>> ListenAtFirstFree(const Launch& launch) {
  Error why = {ErrorCode::kInvalidArgument, "rank 0 has no port to listen on"};
  for (const Endpoint& endpoint : launch.endpoints) {
    Result<std::vector<Listener>> listeners = ListenAt(endpoint);
    if (listeners.ok()) return listeners;
    why = listeners.error();
    if (why.code != ErrorCode::kUnavailable) break;
  }
  return Error{why.code, why.message + "; " + launch.port_advice};
}

/// How PMIx hands on where rank 0 is: a line with the job's token, and one for each name and
/// address of rank 0's host.
std::string WritePlace(const std::string& token, const std::vector<std::string>& hosts,
                       uint16_t port) {
  std::string text = token + "\n";
  for (const std::string& host : hosts) text += fmt::format("{} {}\n", host, port);
  return text;
}

Status ReadPlace(std::string_view text, Launch* launch) {
  const Error no_place{ErrorCode::kCorruption,
                       "PMIx: what rank 0 published is no token with a list of addresses"};
  const size_t end_of_token = text.find('\n');
  if (end_of_token == std::string_view::npos) return no_place;
  launch->token = text.substr(0, end_of_token);
  text.remove_prefix(end_of_token + 1);
  std::vector<Endpoint>& endpoints = launch->endpoints;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const size_t space = line.find(' ');
    if (space == std::string_view::npos) break;
    uint16_t port = 0;
    const std::string_view digits = line.substr(space + 1);
    const auto [end, failure] = std::from_chars(digits.begin(), digits.end(), port);
    if (failure != std::errc() || end != digits.end()) break;
    endpoints.push_back({std::string(line.substr(0, space)), port});
  }
  if (text.empty() && !endpoints.empty()) return {};
  return no_place;
}

/// The names and addresses of this host, as the other ranks may know it.
std::vector<std::string> OwnNames(bool all_on_this_host) {
  if (all_on_this_host) return {"127.0.0.1"};
  std::vector<std::string> names = InterfaceAddresses();
  names.insert(names.begin(), HostName());
  return names;
}

Result<MeetingPoint> MeetByPmix(Launch launch, std::chrono::seconds timeout) {
  PENSTOCK_ASSIGN(const std::unique_ptr<Pmix> pmix, Pmix::Start());
  const Pmix::Place& place = pmix->place();
  launch.size = place.size;
  launch.rank = place.rank;
  launch.local_size = place.local_size;
  launch.local_rank = place.local_rank;
  launch.by_pmix = false;
  if (place.size == 1) return Meet(std::move(launch), timeout);
  if (place.rank > 0) {
    PENSTOCK_ASSIGN(const std::string published, pmix->Fetch(timeout));
    PENSTOCK_TRY(ReadPlace(published, &launch));
    return VisitMeeting(launch, timeout);
  }
  const bool one_host = place.local_size == place.size;
  PENSTOCK_ASSIGN(const Listener listener, Listen(0, one_host));
  // Only processes of the job have the values that PMIx distributes.
  if (launch.token.empty()) {
    PENSTOCK_ASSIGN(launch.token, MakeToken());
  }
  PENSTOCK_TRY(pmix->Publish(WritePlace(launch.token, OwnNames(one_host), listener.port)));
  return HostMeeting(launch, {&listener, 1}, timeout);
}

}  // namespace

Result<MeetingPoint> Meet(Launch launch, std::chrono::seconds timeout) {
  if (launch.by_pmix) return MeetByPmix(std::move(launch), timeout);
  if (launch.size == 1) {
    return MeetingPoint{
        .world = {}, .members = {{.host = HostName(), .pid = static_cast<uint64_t>(::getpid())}}};
  }
  if (launch.rank > 0) return VisitMeeting(launch, timeout);
  PENSTOCK_ASSIGN(const std::vector<Listener> listeners, ListenAtFirstFree(launch));
  return HostMeeting(launch, listeners, timeout);
}

World PlaceOf(const Launch& launch, const std::vector<Member>& members) {
  World world = {.size = launch.size, .rank = launch.rank, .local_size = 0, .local_rank = 0};
  for (uint32_t rank = 0; rank < members.size(); ++rank) {
    if (members[rank].host != members[launch.rank].host) continue;
    if (rank < launch.rank) ++world.local_rank;
    ++world.local_size;
  }
  world.local_rank = launch.local_rank.value_or(world.local_rank);
  world.local_size = std::max(launch.local_size.value_or(world.local_size), world.local_rank + 1);
  return world;
}

}  // namespace penstock::comm
