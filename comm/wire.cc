#include "comm/wire.h"

#include <utility>

namespace penstock::comm {
namespace {

constexpr uint32_t kMagic = 0x33624A70;  // "pJb3"
constexpr size_t kHeader = 12;
constexpr size_t kFixedPayload = 3 * 8 + 4;

void PutNumber(uint64_t value, size_t bytes, std::string* out) {
  for (size_t i = 0; i < bytes; ++i) out->push_back(static_cast<char>(value >> (8 * i) & 0xFF));
}

/// The little-endian number at the beginning of `bytes`, which are enough.
uint64_t NumberAt(std::string_view bytes, size_t count) {
  uint64_t value = 0;
  for (size_t i = 0; i < count; ++i) {
    value |= uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  }
  return value;
}

Error NoMessage(std::string_view why) {
  return MakeError(ErrorCode::kCorruption, "what arrived is no message of a job ({})", why);
}

}  // namespace

void SetStatus(const Status& status, Message* message) {
  message->a = status.ok() ? 0 : 1 + static_cast<uint64_t>(status.error().code);
  message->text = status.ok() ? "" : OneLine(status.error().message, kMaxError);
}

Status StatusOf(const Message& message) {
  if (message.a == 0) return {};
  const bool known = message.a <= 1 + static_cast<uint64_t>(ErrorCode::kCancelled);
  return Error{known ? static_cast<ErrorCode>(message.a - 1) : ErrorCode::kUnavailable,
               OneLine(message.text, kMaxError)};
}

Frame EncodeMessage(const Message& message) {
  const size_t payload = kFixedPayload + message.key.size() + message.text.size();
  PENSTOCK_CHECK(payload <= kMaxPayload, "a message of {} bytes", payload);
  auto frame = std::make_shared<std::string>();
  frame->reserve(kHeader + payload);
  PutNumber(kMagic, 4, frame.get());
  PutNumber(static_cast<uint32_t>(message.type), 4, frame.get());
  PutNumber(payload, 4, frame.get());
  PutNumber(message.number, 8, frame.get());
  PutNumber(message.a, 8, frame.get());
  PutNumber(message.b, 8, frame.get());
  PutNumber(message.key.size(), 4, frame.get());
  *frame += message.key;
  *frame += message.text;
  return frame;
}

void MessageParser::Add(std::string_view bytes) {
  if (taken_ > 0 && taken_ >= bytes_.size() / 2) {
    bytes_.erase(0, taken_);
    taken_ = 0;
  }
  bytes_ += bytes;
}

Result<std::optional<Message>> MessageParser::Next() {
  std::string_view rest = bytes_;
  rest.remove_prefix(taken_);
  if (rest.size() < kHeader) return std::optional<Message>();
  if (NumberAt(rest, 4) != kMagic) return NoMessage("its first bytes");
  const uint64_t type = NumberAt(rest.substr(4), 4);
  if (type < static_cast<uint64_t>(MessageType::kHello) ||
      type > static_cast<uint64_t>(MessageType::kEnd)) {
    return NoMessage("its type");
  }
  const uint64_t payload = NumberAt(rest.substr(8), 4);
  if (payload < kFixedPayload || payload > most_payload_) return NoMessage("its length");
  if (rest.size() < kHeader + payload) return std::optional<Message>();
  rest = rest.substr(kHeader, payload);
  Message message{.type = static_cast<MessageType>(type),
                  .number = NumberAt(rest, 8),
                  .a = NumberAt(rest.substr(8), 8),
                  .b = NumberAt(rest.substr(16), 8)};
  const uint64_t key = NumberAt(rest.substr(24), 4);
  rest.remove_prefix(kFixedPayload);
  if (key > rest.size()) return NoMessage("the length of its key");
  message.key = rest.substr(0, key);
  message.text = rest.substr(key);
  taken_ += kHeader + payload;
  return std::optional(std::move(message));
}

void TextWriter::Number(uint64_t value) { PutNumber(value, 8, &bytes_); }

void TextWriter::Text(std::string_view text) {
  Number(text.size());
  bytes_ += text;
}

uint64_t TextReader::Number() {
  if (short_ || bytes_.size() < 8) {
    short_ = true;
    return 0;
  }
  const uint64_t value = NumberAt(bytes_, 8);
  bytes_.remove_prefix(8);
  return value;
}

std::string TextReader::Text() {
  const uint64_t size = Number();
  if (short_ || size > bytes_.size()) {
    short_ = true;
    return {};
  }
  std::string text(bytes_.substr(0, size));
  bytes_.remove_prefix(size);
  return text;
}

std::string EncodeGreeting(const Greeting& greeting) {
  TextWriter writer;
  writer.Text(greeting.host);
  writer.Text(greeting.token);
  return writer.Take();
}

Result<Greeting> DecodeGreeting(std::string_view text) {
  TextReader reader(text);
  Greeting greeting;
  greeting.host = OneLine(reader.Text(), kMaxHost);
  greeting.token = reader.Text();
  if (!reader.complete()) return NoMessage("its greeting");
  return greeting;
}

std::string EncodeMembers(const std::vector<Member>& members) {
  TextWriter writer;
  for (const Member& member : members) {
    writer.Number(member.pid);
    writer.Text(member.host);
  }
  return writer.Take();
}

Result<std::vector<Member>> DecodeMembers(std::string_view text, uint32_t size) {
  TextReader reader(text);
  std::vector<Member> members;
  while (members.size() < size && reader.ok()) {
    const uint64_t pid = reader.Number();
    members.push_back({.host = OneLine(reader.Text(), kMaxHost), .pid = pid});
  }
  if (!reader.complete()) return NoMessage("its members");
  return members;
}

}  // namespace penstock::comm
