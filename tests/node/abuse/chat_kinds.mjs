// Bad bodies for /v1/chat/completions: fields, messages, tools, output formats.
import { Raw, fieldKind, fieldKinds, kindsOf } from './kind.mjs';
import { ofOtherType } from '../random.mjs';

const chatBase = (r) => ({ messages: [{ role: 'user', content: `Say ${r.word()}.` }], max_tokens: 4,
  [`x_${r.word()}`]: r.below(10) });
export const chat = kindsOf('/v1/chat/completions', chatBase);

const tool = (name) => ({ type: 'function', function: { name, description: 'A tool.',
  parameters: { type: 'object', properties: { city: { type: 'string' } } } } });

// What the routes that generate share: name, JSON type, and values outside the range.
export const samplingFields = [
  { name: 'temperature', type: 'number', low: (r) => -0.001 - r.next(), high: (r) => 2.001 + 9 * r.next() },
  { name: 'top_p', type: 'number', low: (r) => r.pick([0, -0.1, -1e300]), high: () => 1.0001 },
  { name: 'top_k', type: 'integer', low: (r) => -2 - r.below(99), high: () => 4294967296 },
  { name: 'min_p', type: 'number', low: () => -0.01, high: (r) => 1.01 + r.next() },
  { name: 'presence_penalty', type: 'number', low: () => -2.01, high: () => 2.01 },
  { name: 'frequency_penalty', type: 'number', low: () => -2.01, high: () => 2.01 },
  { name: 'repetition_penalty', type: 'number', low: (r) => r.pick([0, -1, -1e9]) },
  { name: 'seed', type: 'integer', low: () => new Raw('-9223372036854775809'),
    high: () => new Raw('9223372036854775808') },
];
const commonFields = [
  ...samplingFields,
  { name: 'n', type: 'integer', low: (r) => -r.below(5), high: (r) => 129 + r.below(1e6) },
  { name: 'min_tokens', type: 'integer', low: (r) => -1 - r.below(9), high: () => 5 },
  { name: 'truncate_prompt_tokens', type: 'integer', low: (r) => -2 - r.below(9) },
  { name: 'thinking_token_budget', type: 'integer', low: (r) => -2 - r.below(9) },
  { name: 'prompt_logprobs', type: 'integer', low: (r) => -2 - r.below(9), high: (r) => 21 + r.below(999) },
  { name: 'priority', type: 'integer', low: (r) => -1 - r.below(99), high: (r) => 1 + r.below(99) },
  { name: 'model', type: 'string' },
  { name: 'user', type: 'string' },
  { name: 'request_id', type: 'string' },
  { name: 'session_id', type: 'string' },
  { name: 'cache_salt', type: 'string', low: () => '', high: (r) => 'x'.repeat(129 + r.below(2000)) },
  { name: 'stream', type: 'boolean' },
  { name: 'ignore_eos', type: 'boolean' },
  { name: 'echo', type: 'boolean' },
  { name: 'include_stop_str_in_output', type: 'boolean' },
  { name: 'return_token_ids', type: 'boolean' },
  { name: 'return_prompt_text', type: 'boolean' },
  { name: 'return_tokens_as_token_ids', type: 'boolean' },
  { name: 'use_beam_search', type: 'boolean' },
  { name: 'stream_options', type: 'object' },
  { name: 'logit_bias', type: 'object' },
  { name: 'response_format', type: 'object' },
  { name: 'structured_outputs', type: 'object' },
];
const chatFields = [
  { name: 'max_tokens', type: 'integer', low: (r) => -r.below(5), high: () => new Raw('9223372036854775808') },
  { name: 'max_completion_tokens', type: 'integer', low: (r) => -r.below(5) },
  { name: 'top_logprobs', type: 'integer', low: (r) => -2 - r.below(9), high: (r) => 21 + r.below(999) },
  { name: 'logprobs', type: 'boolean' },
  { name: 'include_reasoning', type: 'boolean' },
  { name: 'parallel_tool_calls', type: 'boolean' },
  { name: 'add_special_tokens', type: 'boolean' },
  { name: 'skip_special_tokens', type: 'boolean' },
  { name: 'add_generation_prompt', type: 'boolean' },
  { name: 'continue_final_message', type: 'boolean' },
  { name: 'chat_template_kwargs', type: 'object' },
  { name: 'thinking', type: 'object' },
  { name: 'messages', type: 'list' },
  { name: 'tools', type: 'list' },
];

// Kinds of fields that /v1/chat/completions and /v1/completions read alike.
export function commonKinds(kind) {
  const set = (field, what, value, status, param) => fieldKind(kind, field, what, value, status, param);
  return [
    ...commonFields.flatMap((field) => fieldKinds(kind, field)),
    set('model', 'unknown', (r) => r.word() + r.pick(['', '/', '[1m]', '\u0000', '"', '<script>']), 404),
    set('model', 'long name', (r) => r.word().repeat(r.between(100, 3000)), 404),
    set('cache_salt', 'forbidden character', (r) => `a${r.pick(['@', '/', '\\', '\u0000'])}b`),
    set('stop', 'wrong type', (r) => r.pick([1, true, {}, { a: 1 }])),
    set('stop', 'item of wrong type', (r) => [r.word(), r.pick([1, null, true, [], {}])], 400, 'stop.1'),
    set('stop', 'empty string', (r) => r.pick(['', ['a', '']])),
    set('stop', 'too many', (r) => Array.from({ length: r.between(65, 5000) }, () => r.word())),
    set('stop', 'a hundred thousand', (r) => Array.from({ length: 100_000 }, (_, i) => `${r.word()}${i}`)),
    set('stop_token_ids', 'wrong type', (r) => r.pick([1, '1', true, {}])),
    set('stop_token_ids', 'not in the vocabulary', (r) => [1, r.pick([-1, 1e9, 4294967296])], 400, 'stop_token_ids.1'),
    set('stop_token_ids', 'item of wrong type', (r) => [1, r.pick(['1', null, 1.5, []])], 400, 'stop_token_ids.1'),
    set('allowed_token_ids', 'empty', () => []),
    set('allowed_token_ids', 'not in the vocabulary', (r) => [r.pick([-1, 99_999_999])], 400, 'allowed_token_ids.0'),
    set('bad_words', 'empty string', () => ['x', '']),
    set('bad_words', 'item of wrong type', (r) => [r.pick([1, null, {}])], 400, 'bad_words.0'),
    set('bad_words', 'too many', () => Array.from({ length: 1025 }, (_, i) => `w${i}`)),
    set('logit_bias', 'no token id', (r) => ({ [r.pick(['x', '-1', '1.5', '', '99999999', ' 1', '0x10'])]: 1 })),
    set('logit_bias', 'value of wrong type', (r) => ({ 5: r.pick(['1', null, true, [], {}]) })),
    set('logit_bias', 'long key', (r) => ({ [`${'0'.repeat(r.between(1000, 50_000))}5`]: 'x' })),
    set('stream_options', 'without stream', () => ({ include_usage: true })),
    kind('stream_options.include_usage: wrong type', 400, 'stream_options.include_usage', (body, r) => {
      Object.assign(body, { stream: true, stream_options: { include_usage: ofOtherType('boolean', r) } });
    }),
    kind('stream_options.continuous_usage_stats: wrong type', 400, 'stream_options.continuous_usage_stats',
      (body, r) => {
        Object.assign(body, { stream: true, stream_options: { continuous_usage_stats: ofOtherType('boolean', r) } });
      }),
    kind('prompt_logprobs with stream', 400, 'prompt_logprobs', (body, r) => {
      Object.assign(body, { stream: true, prompt_logprobs: r.between(1, 20) });
    }),
    kind('n above 1 without randomness', 400, 'n', (body, r) => {
      Object.assign(body, { n: r.between(2, 9), temperature: 0 });
    }),
    set('use_beam_search', 'asked for', () => true),
    set('response_format', 'unknown type', (r) => ({ type: r.word() }), 400, 'response_format.type'),
    set('response_format', 'without type', () => ({ a: 1 }), 400, 'response_format.type'),
    set('response_format', 'json_schema without schema holder', () => ({ type: 'json_schema' }), 400,
      'response_format.json_schema'),
    set('response_format', 'json_schema of wrong type', (r) => ({ type: 'json_schema',
      json_schema: ofOtherType('object', r) }), 400, 'response_format.json_schema'),
    set('structured_outputs', 'none', () => ({})),
    set('structured_outputs', 'several', () => ({ regex: 'a+', choice: ['a'] })),
    set('structured_outputs', 'regex of wrong type', (r) => ({ regex: ofOtherType('string', r) }), 400,
      'structured_outputs.regex'),
    set('structured_outputs', 'grammar of wrong type', (r) => ({ grammar: ofOtherType('string', r) }), 400,
      'structured_outputs.grammar'),
    set('structured_outputs', 'choice of nothing', () => ({ choice: [] }), 400, 'structured_outputs.choice'),
    set('structured_outputs', 'choice of wrong type', (r) => ({ choice: ofOtherType('list', r) }), 400,
      'structured_outputs.choice'),
    set('structured_outputs', 'schema text that is no JSON', () => ({ json: '{"type": ' }), 400,
      'structured_outputs.json'),
    kind('two output constraints', 400, undefined, (body) => {
      Object.assign(body, { response_format: { type: 'json_object' }, structured_outputs: { regex: 'a+' } });
    }),
    kind('old and new spelling of a constraint', 400, undefined, (body) => {
      Object.assign(body, { structured_outputs: { choice: ['a'] }, guided_regex: 'a+' });
    }),
  ];
}

const message = (name, param, value) => chat(`message: ${name}`, 400, param,
  (body, r) => { body.messages = value(r); });
const user = (content) => ({ role: 'user', content });
const call = (more) => [user('x'), { role: 'assistant', content: '', tool_calls: [more] }];

const messageKinds = [
  chat('message: none at all', 400, 'messages', (body) => { delete body.messages; }),
  message('empty list', 'messages', () => []),
  message('no object', 'messages.0', (r) => [ofOtherType('object', r)]),
  message('second is no object', 'messages.1', (r) => [user('x'), ofOtherType('object', r)]),
  message('unknown role', 'messages.0.role', (r) => [{ role: r.pick(['function', 'USER', r.word(), '']), content: 'x' }]),
  message('role of wrong type', 'messages.0.role', (r) => [{ role: ofOtherType('string', r), content: 'x' }]),
  message('no role', 'messages.0.role', () => [{ content: 'x' }]),
  message('long role', 'messages.0.role', (r) => [{ role: 'x'.repeat(r.between(1e3, 1e5)), content: 'x' }]),
  message('content of wrong type', 'messages.0.content', (r) => [user(r.pick([1, true, {}, { text: 'x' }]))]),
  message('part of wrong type', 'messages.0.content.1', (r) => [user(['x', r.pick([1, null, true, []])])]),
  message('image', 'messages.0.content.1.type', (r) => [user([{ type: 'text', text: 'x' },
    { type: 'image_url', image_url: { url: `data:image/png;base64,${r.bytes(90).toString('base64')}` } }])]),
  message('audio', 'messages.0.content.0.type', () => [user([{ type: 'input_audio', input_audio: { data: '', format: 'wav' } }])]),
  message('file', 'messages.0.content.0.type', () => [user([{ type: 'file', file: { file_id: 'f' } }])]),
  message('part of unknown type', 'messages.0.content.0.type', (r) => [user([{ type: r.word() }])]),
  message('part without type', 'messages.0.content.0.type', () => [user([{ a: 1 }])]),
  message('part type of wrong type', 'messages.0.content.0.type', (r) => [user([{ type: ofOtherType('string', r), text: 'x' }])]),
  message('text part without text', 'messages.0.content.0.text', () => [user([{ type: 'text' }])]),
  message('text of wrong type', 'messages.0.content.0.text', (r) => [user([{ type: 'text', text: ofOtherType('string', r) }])]),
  message('empty developer message', 'messages.0.content', (r) => [{ role: 'developer', content: r.pick(['', null, []]) }, user('x')]),
  message('reasoning of wrong type', 'messages.1.reasoning', (r) => [user('x'), { role: 'assistant', content: 'y', reasoning: ofOtherType('string', r) }]),
  message('reasoning_content of wrong type', 'messages.1.reasoning_content', (r) => [user('x'), { role: 'assistant', content: 'y', reasoning_content: ofOtherType('string', r) }]),
  message('tool_calls of wrong type', 'messages.1.tool_calls', (r) => [user('x'), { role: 'assistant', tool_calls: ofOtherType('list', r) }]),
  message('call that is no object', 'messages.1.tool_calls.0', (r) => call(ofOtherType('object', r))),
  message('call without function', 'messages.1.tool_calls.0.function', () => call({ id: 'a', type: 'function' })),
  message('call with function of wrong type', 'messages.1.tool_calls.0.function', (r) => call({ function: ofOtherType('object', r) })),
  message('call without name', 'messages.1.tool_calls.0.function.name', () => call({ function: { arguments: '{}' } })),
  message('call with name of wrong type', 'messages.1.tool_calls.0.function.name', (r) => call({ function: { name: ofOtherType('string', r) } })),
  message('call with id of wrong type', 'messages.1.tool_calls.0.id', (r) => call({ id: ofOtherType('string', r), function: { name: 'f' } })),
  message('tool_call_id of wrong type', 'messages.1.tool_call_id', (r) => [user('x'), { role: 'tool', content: 'y', tool_call_id: ofOtherType('string', r) }]),
  message('thousands, the last one bad', undefined, (r) => [...Array.from({ length: r.between(1000, 5000) }, () => user('x')), { role: 'x' }]),
  chat('continue_final_message after a user message', 400, 'continue_final_message', (body) => {
    body.continue_final_message = true;
  }),
  chat('continue_final_message and add_generation_prompt', 400, 'continue_final_message', (body) => {
    body.messages.push({ role: 'assistant', content: 'y' });
    Object.assign(body, { continue_final_message: true, add_generation_prompt: true });
  }),
  chat('prompt longer than the context', 400, 'input_tokens', (body, r) => {
    body.messages[0].content = `${r.word()} `.repeat(r.between(5000, 9000));
  }, { code: 'context_length_exceeded' }),
  chat('conversation longer than the context', 400, 'input_tokens', (body, r) => {
    body.messages = Array.from({ length: 999 }, (_, i) => ({ role: i % 2 ? 'assistant' : 'user',
      content: `${r.word()} ${i} ${r.word()} ${r.word()}` }));
  }, { code: 'context_length_exceeded' }),
];

const toolKinds = [
  chat('tool that is no object', 400, 'tools.0', (body, r) => { body.tools = [ofOtherType('object', r)]; }),
  chat('tool of unknown type', 400, 'tools.0', (body, r) => { body.tools = [{ ...tool('f'), type: r.word() }]; }),
  chat('tool without type', 400, 'tools.0', (body) => { body.tools = [{ ...tool('f'), type: undefined }]; }),
  chat('tool without function', 400, 'tools.1', (body) => { body.tools = [tool('f'), { type: 'function' }]; }),
  chat('tool without name', 400, 'tools.0', (body) => { body.tools = [{ type: 'function', function: {} }]; }),
  chat('tool with name of wrong type', 400, 'tools.0', (body, r) => {
    body.tools = [{ type: 'function', function: { name: ofOtherType('string', r) } }];
  }),
  chat('tool_choice: unknown word', 400, 'tool_choice', (body, r) => {
    Object.assign(body, { tools: [tool('f')], tool_choice: r.pick([r.word(), 'any', 'AUTO', '']) });
  }),
  chat('tool_choice: wrong type', 400, 'tool_choice', (body, r) => {
    Object.assign(body, { tools: [tool('f')], tool_choice: r.pick([1, true, [], ['auto']]) });
  }),
  chat('tool_choice: required without tools', 400, 'tool_choice', (body) => { body.tool_choice = 'required'; }),
  chat('tool_choice: named without tools', 400, 'tool_choice', (body) => {
    body.tool_choice = { type: 'function', function: { name: 'f' } };
  }),
  chat('tool_choice: unknown tool', 400, 'tool_choice', (body, r) => {
    Object.assign(body, { tools: [tool('f')],
      tool_choice: { type: 'function', function: { name: `g${r.word().repeat(r.between(1, 500))}` } } });
  }),
  chat('tool_choice: named without name', 400, 'tool_choice', (body, r) => {
    Object.assign(body, { tools: [tool('f')],
      tool_choice: r.pick([{}, { type: 'function' }, { type: 'function', function: {} }, { function: { name: 'f' } }]) });
  }),
];

const restKinds = [
  fieldKind(chat, 'reasoning_effort', 'unknown', (r) => r.pick([r.word(), 'HIGH', ''])),
  fieldKind(chat, 'reasoning_effort', 'wrong type', (r) => ofOtherType('string', r)),
  fieldKind(chat, 'thinking', 'unknown type', (r) => ({ type: r.word() }), 400, 'thinking.type'),
  fieldKind(chat, 'thinking', 'type of wrong type', (r) => ({ type: ofOtherType('string', r) }), 400, 'thinking.type'),
  ...['thinking', 'enable_thinking', 'drop_thinking', 'native_developer'].map((name) =>
    fieldKind(chat, 'chat_template_kwargs', `${name} of wrong type`, (r) => ({ [name]: ofOtherType('boolean', r) }), 400,
      `chat_template_kwargs.${name}`)),
  fieldKind(chat, 'chat_template_kwargs', 'unknown effort', (r) => ({ reasoning_effort: r.word() }), 400, 'reasoning_effort'),
  fieldKind(chat, 'top_logprobs', 'without logprobs', (r) => r.between(1, 20)),
  fieldKind(chat, 'chat_template', 'given', (r) => r.pick(['{{ messages }}', {}, 1])),
];

export const chatKinds = [
  ...chatFields.flatMap((field) => fieldKinds(chat, field)),
  ...commonKinds(chat), ...messageKinds, ...toolKinds, ...restKinds,
];
