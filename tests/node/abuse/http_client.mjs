// Requests over kept connections, and bytes on a socket.
import http from 'node:http';
import net from 'node:net';

export class Client {
  constructor(baseURL, key) {
    const { hostname, port } = new URL(baseURL);
    this.hostname = hostname;
    this.port = Number(port);
    this.key = key;
    this.agent = new http.Agent({ keepAlive: true, maxSockets: 64 });
  }

  headers(more = {}) {
    const headers = { 'Content-Type': 'application/json', ...more };
    if (this.key && headers.Authorization === undefined) headers.Authorization = `Bearer ${this.key}`;
    for (const name of Object.keys(headers)) if (headers[name] === null) delete headers[name];
    return headers;
  }

  // {status, headers, text}. `onData` sees the answer's text as it comes.
  request({ path, method = 'POST', headers, body = '', onData }) {
    return new Promise((resolve, reject) => {
      const bytes = Buffer.isBuffer(body) ? body : Buffer.from(body);
      const request = http.request({ hostname: this.hostname, port: this.port, agent: this.agent, path,
        method, headers: { ...this.headers(headers), 'Content-Length': bytes.length } }, (response) => {
        let text = '';
        response.setEncoding('utf8');
        response.on('data', (part) => {
          text += part;
          onData?.(part);
        });
        response.on('end', () => resolve({ status: response.statusCode, headers: response.headers, text }));
        response.on('error', reject);
      });
      request.on('error', (error) => {
        // A kept connection that the server closed between two requests: HTTP lets it, and the
        // client asks again.
        if (error.code === 'ECONNRESET' && request.reusedSocket) {
          this.request({ path, method, headers, body, onData }).then(resolve, reject);
        } else {
          reject(error);
        }
      });
      request.end(bytes);
    });
  }

  close() { this.agent.destroy(); }

  // Runs `talk(socket)` on a new connection and collects what comes back until the server closes,
  // or until `isEnough(bytes so far)`. Resolves to the bytes and whether the server closed.
  wire(talk, isEnough = () => false, timeoutMs = 60_000) {
    return new Promise((resolve, reject) => {
      const socket = net.connect({ host: this.hostname, port: this.port, allowHalfOpen: true });
      const parts = [];
      let isDone = false;
      const done = (closed) => {
        if (isDone) return;
        isDone = true;
        clearTimeout(timer);
        socket.destroy();
        resolve({ bytes: Buffer.concat(parts), closed });
      };
      const timer = setTimeout(() => {
        socket.destroy();
        reject(new Error(`no answer and no end of the connection within ${timeoutMs} ms; got ` +
          JSON.stringify(Buffer.concat(parts).toString('latin1').slice(0, 300))));
      }, timeoutMs);
      socket.on('data', (part) => {
        parts.push(part);
        if (isEnough(Buffer.concat(parts))) done(false);
      });
      socket.on('end', () => done(true));
      socket.on('close', () => done(true));
      // The server may close while this side still writes.
      socket.on('error', () => done(true));
      socket.on('connect', () => talk(socket));
    });
  }
}

// The answers in the bytes of a connection, as {status, headers, text}.
export function parseAnswers(bytes) {
  const answers = [];
  let at = 0;
  while (at < bytes.length) {
    const headEnd = bytes.indexOf('\r\n\r\n', at);
    if (headEnd < 0) throw new Error(`a head without end: ${bytes.toString('latin1', at, at + 200)}`);
    const [line, ...fields] = bytes.toString('latin1', at, headEnd).split('\r\n');
    const headers = Object.fromEntries(fields.map((field) => {
      const colon = field.indexOf(':');
      return [field.slice(0, colon).toLowerCase(), field.slice(colon + 1).trim()];
    }));
    const status = Number(/^HTTP\/1\.[01] (\d{3}) /.exec(`${line} `)?.[1]);
    if (!status) throw new Error(`no status line: ${line.slice(0, 200)}`);
    at = headEnd + 4;
    if (status === 100) continue;
    const length = Number(headers['content-length'] ?? 0);
    answers.push({ status, headers, text: bytes.toString('utf8', at, at + length) });
    at += length;
  }
  return answers;
}
