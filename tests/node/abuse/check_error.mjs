// The form of an error.
import assert from 'node:assert/strict';

const openaiTypes = { 400: 'BadRequestError', 401: 'AuthenticationError', 404: 'NotFoundError',
  405: 'Method Not Allowed', 408: 'Request Timeout', 413: 'Request Entity Too Large',
  422: 'UnprocessableEntityError', 431: 'Request Header Fields Too Large',
  501: 'NotImplementedError' };
const anthropicTypes = { 401: 'authentication_error', 404: 'not_found_error', 413: 'request_too_large' };

// A bad value is shown with at most 200 characters.
const maxMessageBytes = 2048;
// Source files, addresses, C++ and system messages: nothing of the machine's inside.
const inner = /\.(cc|h|hpp|cpp):\d|\b0x[0-9a-f]{6,}|std::|what\(\)|[Aa]ssertion|terminate called|bad_alloc|\/(usr|home|build|tmp)\//;

export function checkError(kind, request, answer) {
  const { status, headers, text } = answer;
  const where = `${text.slice(0, 400)}\n  (${request.method ?? 'POST'} ${request.path?.slice(0, 80)} ` +
    `${request.body?.toString().slice(0, 300) ?? ''})`;
  assert.equal(status, kind.status, `status ${status}, documented: ${kind.status}; ${where}`);
  assert.equal(headers['content-type'], 'application/json', where);
  if (status === 401) assert.equal(headers['www-authenticate'], 'Bearer', where);
  if (status === 405) assert.match(headers.allow ?? '', /^(GET|POST|GET, POST)$/, where);
  const body = JSON.parse(text);
  const { error } = body;
  assert.equal(typeof error?.message, 'string', where);
  assert.notEqual(error.message.trim(), '', where);
  assert.ok(Buffer.byteLength(text) <= maxMessageBytes, `${Buffer.byteLength(text)} bytes; ${where}`);
  assert.doesNotMatch(error.message, inner, where);
  if (request.path.startsWith('/v1/messages')) {
    assert.deepEqual(Object.keys(body), ['type', 'error'], where);
    assert.equal(body.type, 'error', where);
    assert.deepEqual(Object.keys(error), ['type', 'message'], where);
    assert.equal(error.type, anthropicTypes[status] ?? 'invalid_request_error', where);
    return;
  }
  assert.deepEqual(Object.keys(body), ['error'], where);
  assert.deepEqual(Object.keys(error).sort(), ['code', 'message', 'param', 'type'], where);
  assert.equal(error.type, openaiTypes[status], where);
  assert.equal(error.code, kind.code ?? status, where);
  assert.ok(error.param === null || typeof error.param === 'string', where);
  if (kind.param !== undefined) assert.equal(error.param, kind.param, `param ${error.param}; ${where}`);
}
