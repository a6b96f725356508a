// The messages of a job, and their form on a connection.
//
// A message is a frame: the magic "pJb3", its type and the length of its payload, each of 4 bytes,
// then the payload: number, a and b of 8 bytes each, the length of the key in 4, the key, and the
// text, which is the rest. Numbers are little-endian. All ranks are the same program, so that there
// is one version, in the magic.
//
// Received data is not trusted: lengths are bounded before memory is allocated for them, and
// anything but a message is an error of the connection. Plain values and functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "comm/members.h"

namespace penstock::comm {

/// The largest text, as Gather takes it.
inline constexpr size_t kMaxText = 16 << 20;
/// The largest key.
inline constexpr size_t kMaxKey = 1024;
/// The largest payload: a text, and the fields before it.
inline constexpr size_t kMaxPayload = kMaxText + 4096;
/// The largest payload of a connection that has not greeted yet.
inline constexpr size_t kMaxGreeting = 4096;
/// The longest error that is handed on, and the longest name of a host.
inline constexpr size_t kMaxError = 16384;
inline constexpr size_t kMaxHost = 64;

enum class MessageType : uint32_t {
  // Messages of the start (comm/rendezvous.h).
  kHello = 1,  ///< to rank 0: number is the rank, a its world size, b the pid; key the run,
               ///< text a Greeting
  kWelcome,    ///< from rank 0: the greeting was right
  kJoined,     ///< to rank 0: this connection is the one
  kStart,      ///< from rank 0: all have joined; text has the members
  // Calls: number names the call, and the reply repeats it (comm/hub.h).
  kAgree,   ///< a and text: the status
  kGather,  ///< text
  kVote,    ///< a is the step, b the session
  kFinish,
  kReply,  ///< from rank 0: text is a value; b numbers several replies
  // Messages without a reply.
  kHeartbeat,  ///< text: the progress of the sender
  kFail,       ///< to rank 0: a and text are an error of the sender
  kEnd,  ///< from rank 0: number is an EndKind, a and text a status; to rank 0: why it was given up
};

struct Message {
  MessageType type = MessageType::kHeartbeat;
  uint64_t number = 0;
  uint64_t a = 0;
  uint64_t b = 0;
  std::string key = {};
  std::string text = {};

  bool operator==(const Message&) const = default;
};

/// How a job ends: by Finish of all, by an error that all ranks were told by Agree, or by a
/// failure.
enum class EndKind : uint32_t { kFinished, kAgreed, kVerdict };

/// Puts a status into a and text, and takes it out.
void SetStatus(const Status& status, Message* message);
Status StatusOf(const Message& message);

/// A message as bytes, for any number of connections.
using Frame = std::shared_ptr<const std::string>;

/// Encodes a message. Its key and text are within their limits.
Frame EncodeMessage(const Message& message);

/// Takes messages out of bytes as they arrive.
class MessageParser {
 public:
  /// Messages above `most_payload` bytes are errors.
  explicit MessageParser(size_t most_payload) : most_payload_(most_payload) {}

  void set_most_payload(size_t most_payload) { most_payload_ = most_payload; }
  void Add(std::string_view bytes);
  /// Returns the next message; none if more bytes are needed. Errors: kCorruption, saying what is
  /// wrong; nothing after it is looked at.
  Result<std::optional<Message>> Next();

 private:
  size_t most_payload_;
  std::string bytes_;
  size_t taken_ = 0;  ///< bytes taken of bytes_
};

/// What stands in a text that holds several values, one after the other.
class TextWriter {
 public:
  void Number(uint64_t value);
  void Text(std::string_view text);
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Reads what TextWriter wrote. After the first value that is not there, all are zero or empty.
class TextReader {
 public:
  explicit TextReader(std::string_view bytes) : bytes_(bytes) {}
  uint64_t Number();
  std::string Text();
  /// Whether all was there, and nothing is left.
  bool complete() const { return !short_ && bytes_.empty(); }
  /// Whether all was there so far.
  bool ok() const { return !short_; }

 private:
  std::string_view bytes_;
  bool short_ = false;
};

/// What a rank says of itself when it greets, beside numbers and the run.
struct Greeting {
  std::string host;
  std::string token;  ///< the job's token; no message to a person has it
};
std::string EncodeGreeting(const Greeting& greeting);
/// Errors: kCorruption if `text` is none.
Result<Greeting> DecodeGreeting(std::string_view text);

/// The members of a job as a text, by rank.
std::string EncodeMembers(const std::vector<Member>& members);
/// Errors: kCorruption if `text` does not hold `size` members.
Result<std::vector<Member>> DecodeMembers(std::string_view text, uint32_t size);

}  // namespace penstock::comm
