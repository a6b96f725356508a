// Tells which names of a hostfile mean this host, and which mean the same host.
//
// Threads: any.
#pragma once

#include <string>

namespace penstock::train {

/// Returns this host's name, with or without its domain.
std::string OwnHostName();

/// Whether `host` is localhost or an address that means it.
bool IsLoopback(const std::string& host);

/// Whether `host` means the host named `own`: it is a loopback, or that name. A name without a
/// domain equals one that has any. No name is looked up, so another name of this host, or its
/// address, counts as another host.
bool IsThisHost(const std::string& host, const std::string& own);

/// Returns the same text for names that are known to mean the same host: for all that mean this
/// one, and for those that differ in capitals alone.
std::string HostKey(const std::string& host, const std::string& own);

}  // namespace penstock::train
