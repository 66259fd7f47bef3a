// Bytes on a socket: requests that are no HTTP, lengths that lie, clients that leave or dawdle.
//
// {wire(socket), statuses, path}: the statuses of all answers on the connection, in order; the server
// closes it afterwards, unless `leaves` says that the client goes first and nobody waits for an answer.
import { toJson } from './kind.mjs';

const path = '/v1/chat/completions';
const good = (r, more = {}) => toJson({ messages: [{ role: 'user', content: `Say ${r.word()}.` }], max_tokens: 4, ...more });

// For kinds whose answer is one error; `make(r, head)` returns what to send. `head(lines)` is the
// beginning of a request with these header lines.
const wire = (name, status, make, more = {}) => ({
  name: `wire: ${name}`, status, param: null, ...more,
  make: (r, key) => {
    const head = (...lines) => [`POST ${path} HTTP/1.1`, 'Host: x', 'Content-Type: application/json',
      ...(key ? [`Authorization: Bearer ${key}`] : []), ...lines, '', ''].join('\r\n');
    const bytes = make(r, head);
    return { path, statuses: [status].flat().filter((s) => s !== 0), ...(more.leaves ? { leaves: true } : {}),
      wire: typeof bytes === 'function' ? bytes : (socket) => socket.write(bytes) };
  },
});

// As fast as they are taken, but so that answers are read meanwhile.
function writeAll(socket, part, count) {
  if (count === 0 || !socket.writable) return;
  const next = () => setImmediate(writeAll, socket, part, count - 1);
  if (socket.write(part)) next();
  else socket.once('drain', next);
}

const lineKinds = [
  wire('random bytes', 400, (r) => {
    const bytes = r.bytes(r.between(20, 3000));
    bytes[0] |= 0x80;  // no method begins so
    return bytes;
  }),
  wire('TLS hello', 400, (r) => Buffer.concat([Buffer.from([0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3]), r.bytes(506)])),
  wire('HTTP/2 preface', 400, () => 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'),
  wire('no version', 400, (r) => `GET /${r.word()}\r\n\r\n`),
  wire('bad version', 400, (r) => `GET / ${r.pick(['HTTP/9.9', 'HTTP/1', 'HTTP/1.x', 'http/1.1', 'HTTQ/1.1'])}\r\nHost: x\r\n\r\n`),
  wire('no target', 400, () => 'GET  HTTP/1.1\r\n\r\n'),
  wire('control character in the target', 400, (r) => `GET /a${r.pick(['\u0000', '\u0001', '\u007f', '\t'])}b HTTP/1.1\r\nHost: x\r\n\r\n`),
  wire('space in the target', 400, () => 'GET /a b HTTP/1.1\r\nHost: x\r\n\r\n'),
  wire('bad method', 400, (r) => `${r.pick(['G(T', 'GE\u0000T', '"GET"', ':'])} / HTTP/1.1\r\nHost: x\r\n\r\n`),
  wire('header without colon', 400, (r) => `GET / HTTP/1.1\r\nHost: x\r\n${r.word()}\r\n\r\n`),
  wire('space in a header name', 400, () => 'GET / HTTP/1.1\r\nHost: x\r\nA b: c\r\n\r\n'),
  wire('space before the colon', 400, () => 'GET / HTTP/1.1\r\nHost: x\r\nContent-Length : 5\r\n\r\n'),
  wire('control character in a header', 400, (r) => `GET / HTTP/1.1\r\nHost: x\r\nA: b${r.pick(['\u0000', '\u0001', '\u007f'])}c\r\n\r\n`),
  wire('bare line feeds', 400, () => 'GET / HTTP/1.1\nHost: x\n\n'),
  wire('bare carriage return', 400, () => 'GET / HTTP/1.1\r\nHost: x\r\nA: b\rc: d\r\n\r\n'),
  wire('long request line', 431, (r) => `GET /${r.word().repeat(8000)} HTTP/1.1\r\nHost: x\r\n\r\n`),
  wire('long header', 431, (r) => `GET / HTTP/1.1\r\nA: ${r.word().repeat(8000)}\r\n\r\n`),
  wire('thousands of headers', 431, (r) => `GET / HTTP/1.1\r\n${Array.from({ length: 5000 }, (_, i) => `A${i}: ${r.below(9)}\r\n`).join('')}\r\n`),
  wire('headers without end', 431, (r) => (socket) => {
    socket.write('GET / HTTP/1.1\r\n');
    writeAll(socket, `A: ${r.word().repeat(20)}\r\n`.repeat(100), 2000);
  }, { most: 20 }),
];

const lengthKinds = [
  wire('bad Content-Length', 400, (r, head) => head(`Content-Length: ${r.pick(['-1', 'x', '5x', '0x10', '1.5', '', '18446744073709551616', '9'.repeat(99)])}`)),
  wire('two Content-Lengths', 400, (r, head) => `${head('Content-Length: 5', 'Content-Length: 6')}hello!`),
  wire('Content-Length list', 400, (r, head) => `${head('Content-Length: 5, 6')}hello!`),
  wire('Content-Length beyond the limit', 413, (r, head) => head(`Content-Length: ${r.pick([67_108_865, 70e6, 1e12, '9223372036854775807'])}`)),
  wire('Expect with a Content-Length beyond the limit', 413, (r, head) => head('Content-Length: 100000000', 'Expect: 100-continue')),
  wire('Content-Length and chunks', 400, (r, head) => `${head('Content-Length: 5', 'Transfer-Encoding: chunked')}0\r\n\r\n`),
  wire('bad chunk size', 400, (r, head) => `${head('Transfer-Encoding: chunked')}${r.pick(['zz', '-1', '', ' ', '0x5', 'f'.repeat(20)])}\r\nhello\r\n0\r\n\r\n`),
  wire('chunk longer than its size', 400, (r, head) => `${head('Transfer-Encoding: chunked')}3\r\nhello\r\n0\r\n\r\n`),
  wire('chunk beyond the limit', 413, (r, head) => `${head('Transfer-Encoding: chunked')}${r.pick(['4000001', 'fffffff', '7fffffffffffffff'])}\r\n`),
  wire('chunks beyond the limit', 413, (r, head) => (socket) => {
    const chunk = Buffer.concat([Buffer.from('100000\r\n'), Buffer.alloc(0x100000, 0x20), Buffer.from('\r\n')]);
    socket.write(head('Transfer-Encoding: chunked'));
    writeAll(socket, chunk, 70);
  }, { most: 3 }),
  wire('chunk extension without end', 431, (r, head) => `${head('Transfer-Encoding: chunked')}5;${r.word().repeat(90_000)}`,
    { most: 200 }),
  wire('trailer without end', 431, (r, head) => `${head('Transfer-Encoding: chunked')}0\r\n${`${r.word()}: ${r.word()}\r\n`.repeat(50_000)}`,
    { most: 200 }),
  wire('other codings', 501, (r, head) => `${head(`Transfer-Encoding: ${r.pick(['gzip', 'gzip, chunked', 'identity', 'xchunked'])}`)}` +
    'GET /version HTTP/1.1\r\nHost: x\r\n\r\n'),
  // What follows a body that was said to be shorter is the next request.
  { name: 'wire: body longer than its length', status: 400, param: null,
    make: (r, key) => ({ path, statuses: [400, 400], wire: (socket) => {
      const text = good(r);
      socket.write([`POST ${path} HTTP/1.1`, 'Host: x', 'Content-Type: application/json',
        `Authorization: Bearer ${key}`, `Content-Length: ${r.between(1, text.length - 3)}`, '', `${text}\r\n\r\n`].join('\r\n'));
    } }) },
  { name: 'wire: garbage behind a good request', status: 400, param: null,
    make: (r) => ({ path, statuses: [200, 400], wire: (socket) => {
      socket.write(Buffer.concat([Buffer.from('GET /version HTTP/1.1\r\nHost: x\r\n\r\n'), Buffer.from([0xff]), r.bytes(r.between(20, 60_000))]));
    } }) },
  { name: 'wire: many requests at once, the last one bad', status: 400, param: null,
    make: (r) => {
      const count = r.between(2, 60);
      return { path, statuses: [...Array(count).fill(200), 400],
        wire: (socket) => socket.write(`${'GET /version HTTP/1.1\r\nHost: x\r\n\r\n'.repeat(count)}(\r\n\r\n`) };
    } },
];

// Nobody waits for an answer; what matters is what they leave behind.
const leaving = (name, make, more = {}) => wire(`leaves ${name}`, 0, make, { leaves: true, ...more });
const sendThenLeave = (bytes, reset, delayMs) => (socket) => {
  socket.write(bytes);
  setTimeout(() => {
    if (reset) socket.resetAndDestroy();
    else socket.end();
  }, delayMs);
};
const leavingKinds = [
  leaving('at once', (r) => sendThenLeave('', r.below(2), 0)),
  leaving('in the head', (r, head) => {
    const text = head('Content-Length: 5');
    return sendThenLeave(text.slice(0, r.between(1, text.length - 1)), r.below(2), r.below(20));
  }),
  leaving('in the body', (r, head) => {
    const text = good(r);
    return sendThenLeave(head(`Content-Length: ${text.length}`) + text.slice(0, r.below(text.length)), r.below(2), r.below(20));
  }),
  leaving('in a chunk', (r, head) => sendThenLeave(`${head('Transfer-Encoding: chunked')}${r.pick(['', '5', '5\r\n', '5\r\nhel', '5\r\nhello\r\n'])}`, r.below(2), r.below(20))),
  leaving('before its answer', (r, head) => {
    const text = good(r, { max_tokens: 400, ignore_eos: true });
    return sendThenLeave(head(`Content-Length: ${text.length}`) + text, true, r.below(60));
  }, { most: 120 }),
  leaving('in a stream', (r, head) => {
    const text = good(r, { max_tokens: 400, ignore_eos: true, stream: true, n: r.between(1, 3) });
    return sendThenLeave(head(`Content-Length: ${text.length}`) + text, true, r.between(20, 300));
  }, { most: 120 }),
  leaving('in the middle of many samples', (r, head) => {
    const text = good(r, { max_tokens: 400, ignore_eos: true, n: 100 });
    return sendThenLeave(head(`Content-Length: ${text.length}`) + text, true, r.between(20, 300));
  }, { most: 20 }),
  leaving('behind an unread stream', (r, head) => (socket) => {
    const text = good(r, { max_tokens: 60, ignore_eos: true, stream: true });
    socket.pause();
    socket.write(head(`Content-Length: ${text.length}`) + text);
    setTimeout(() => socket.resetAndDestroy(), 400);
  }, { most: 40 }),
  leaving('with a byte now and then in the body', (r, head) => (socket) => {
    socket.write(head('Content-Length: 500'));
    let sent = 0;
    const timer = setInterval(() => {
      if (++sent < 20) return socket.write('x');
      clearInterval(timer);
      socket.end();
    }, 50);
  }, { most: 40 }),
];

// A head in small pieces: 408 when 15 s are over. Run beside everything else.
export const slowKinds = [
  wire('slow head', 408, (r) => (socket) => {
    socket.write('GET / HTTP/1.1\r\n');
    const timer = setInterval(() => {
      if (socket.writable) socket.write(`${r.word()}: ${r.word()}\r\n`);
    }, 500);
    socket.on('close', () => clearInterval(timer));
    socket.on('end', () => clearInterval(timer));
  }),
  wire('half a head, then silence', 408, () => 'POST /v1/chat/completions HTTP/1.1\r\nHost:'),
];

export const wireKinds = [...lineKinds, ...lengthKinds, ...leavingKinds];
