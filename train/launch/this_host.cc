#include "train/launch/this_host.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <string_view>

#include "base/check.h"

namespace penstock::train {
namespace {

std::string LowerCase(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

bool HasDomain(std::string_view name) { return name.find('.') != std::string_view::npos; }

std::string_view WithoutDomain(std::string_view name) { return name.substr(0, name.find('.')); }

}  // namespace

std::string OwnHostName() {
  std::array<char, HOST_NAME_MAX + 1> name = {};
  PENSTOCK_CHECK(::gethostname(name.data(), name.size() - 1) == 0, "errno {}", errno);
  return name.data();
}

bool IsLoopback(const std::string& host) {
  in_addr address = {};
  if (::inet_pton(AF_INET, host.c_str(), &address) == 1) {
    return ntohl(address.s_addr) >> 24U == IN_LOOPBACKNET;
  }
  return LowerCase(host) == "localhost" || host == "::1";
}

bool IsThisHost(const std::string& host, const std::string& own) {
  if (IsLoopback(host)) return true;
  const std::string a = LowerCase(host);
  const std::string b = LowerCase(own);
  if (HasDomain(a) && HasDomain(b)) return a == b;
  return WithoutDomain(a) == WithoutDomain(b);
}

std::string HostKey(const std::string& host, const std::string& own) {
  return LowerCase(IsThisHost(host, own) ? "localhost" : host);
}

}  // namespace penstock::train
