#include "tokenizer/pretokenizer.h"

#include "tokenizer/utf8.h"

namespace fathom {
namespace {

constexpr int kMaxNumberGroup = 3;

bool IsAsciiLetter(char32_t c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// The 32 ASCII punctuation marks and symbols: all that \p{P} and \p{S} have below U+0080.
bool IsAsciiSymbol(char32_t c, uint8_t bits) { return c < 0x80 && (bits & kCharSymbol) != 0; }

}  // namespace

PieceScanner::Char PieceScanner::At(size_t offset) const {
  const Utf8Char c = DecodeValidUtf8(text_, offset);
  return {c.code, classes_.Of(c.code), offset + c.num_bytes};
}

size_t PieceScanner::RunEnd(size_t offset, uint8_t bits) const {
  while (offset < block_end_) {
    const Char c = At(offset);
    if ((c.bits & bits) == 0) break;
    offset = c.end;
  }
  return offset;
}

size_t PieceScanner::BlockEnd(size_t offset) const {
  constexpr uint8_t kOwnBlock = kCharNumber | kCharHanKana;
  Char c = At(offset);
  const uint8_t kind = c.bits & kOwnBlock;
  for (int num_chars = 1; c.end < text_.size(); ++num_chars) {
    if (kind == kCharNumber && num_chars == kMaxNumberGroup) break;
    const Char next = At(c.end);
    if ((next.bits & kOwnBlock) != kind) break;
    c = next;
  }
  return c.end;
}

// Step 3, first alternative that matches:
//   a  one ASCII punctuation mark or symbol, then ASCII letters
//   b  [^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+
//   c  ' '?[\p{P}\p{S}]+[\r\n]*
//   d  \s*[\r\n]+       e  \s+(?!\S)       f  \s+
size_t PieceScanner::MatchEnd(size_t offset) const {
  constexpr uint8_t kWord = kCharLetter | kCharMark;
  const Char first = At(offset);
  const bool has_next = first.end < block_end_;
  const Char next = has_next ? At(first.end) : Char{};

  if (IsAsciiSymbol(first.code, first.bits) && IsAsciiLetter(next.code)) {  // a
    size_t end = first.end;
    while (end < block_end_ && IsAsciiLetter(static_cast<unsigned char>(text_[end]))) ++end;
    return end;
  }
  // b: a mark may be the optional character or part of the run; the match is the same.
  if ((first.bits & kWord) != 0) return RunEnd(first.end, kWord);
  if ((first.bits & (kCharNewline | kCharSymbol)) == 0 && (next.bits & kWord) != 0) {
    return RunEnd(next.end, kWord);
  }
  if ((first.bits & kCharSymbol) != 0 || (first.code == ' ' && (next.bits & kCharSymbol) != 0)) {
    return RunEnd(RunEnd(first.end, kCharSymbol), kCharNewline);  // c
  }
  return (first.bits & kCharSpace) != 0 ? SpaceMatchEnd(offset) : offset;
}

size_t PieceScanner::SpaceMatchEnd(size_t offset) const {
  size_t run_end = offset;
  size_t last_start = offset;   // of the run's last character
  size_t newline_end = offset;  // behind the run's last CR or LF
  while (run_end < block_end_) {
    const Char c = At(run_end);
    if ((c.bits & kCharSpace) == 0) break;
    last_start = run_end;
    run_end = c.end;
    if ((c.bits & kCharNewline) != 0) newline_end = c.end;
  }
  if (newline_end > offset) return newline_end;  // d: backtracks to the last line break
  if (run_end == block_end_) return run_end;     // e: nothing follows
  // e gives the last character back, because a non-space follows; f takes a lone one.
  return last_start > offset ? last_start : run_end;
}

bool PieceScanner::Next(std::string_view* piece) {
  if (offset_ == text_.size()) return false;
  const size_t begin = offset_;
  if (begin == block_end_) block_end_ = BlockEnd(begin);
  offset_ = MatchEnd(begin);
  if (offset_ == begin) {
    // Characters that no alternative takes form one piece up to the next match.
    do {
      offset_ = At(offset_).end;
    } while (offset_ < block_end_ && MatchEnd(offset_) == offset_);
  }
  *piece = text_.substr(begin, offset_ - begin);
  return true;
}

}  // namespace fathom
