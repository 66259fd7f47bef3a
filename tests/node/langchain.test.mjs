// LangChain's chat models for OpenAI-compatible servers and for DeepSeek's API.
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { HumanMessage, ToolMessage } from '@langchain/core/messages';
import { tool } from '@langchain/core/tools';
import { ChatDeepSeek } from '@langchain/deepseek';
import { ChatOpenAI } from '@langchain/openai';
import { apiKey, expectIdle, serveNano, serveScenes, texts, weather } from './support.mjs';

const nano = await serveNano();
const scenes = await serveScenes();
after(() => Promise.all([nano.stop(), scenes.stop()]));

const getWeather = tool(() => weather.result,
  { name: weather.name, description: weather.description, schema: weather.parameters });
const reasoningOf = (message) => message.additional_kwargs.reasoning_content;

// Asks, runs the tools that the answer calls, asks again; the messages of the model in order.
async function loop(model, question, results) {
  const messages = [new HumanMessage(question)];
  const first = await model.invoke(messages);
  messages.push(first, ...first.tool_calls.map((call, i) =>
    new ToolMessage({ content: results[i], tool_call_id: call.id })));
  return [first, await model.invoke(messages)];
}

for (const [name, Model] of Object.entries({ '@langchain/openai': ChatOpenAI, '@langchain/deepseek': ChatDeepSeek })) {
  const create = (baseURL, key, more = {}) => new Model({ model: 'fathom-nano', apiKey: key, maxRetries: 0,
    temperature: 0, timeout: 60_000, configuration: { baseURL }, ...more });
  const real = create(nano.baseURL, 'none');
  const replay = create(scenes.baseURL, apiKey);

  test(`${name}: fathom-nano calls a tool and uses its result`, async () => {
    const [first, second] = await loop(real.bindTools([getWeather]), weather.question, [weather.result]);
    assert.deepEqual(first.tool_calls.map((call) => [call.name, call.args]), [[weather.name, { location: 'Toronto' }]]);
    assert.ok(reasoningOf(first).length > 0);
    assert.equal(second.content, weather.answer);
    assert.ok(second.usage_metadata.input_token_details.cache_read > 0);
    assert.ok(second.usage_metadata.output_token_details.reasoning > 0);
  });

  test(`${name}: fathom-nano over several turns, streamed`, async () => {
    const messages = [new HumanMessage('What is 17*19? Return only the final integer.')];
    let first;
    for await (const chunk of await real.stream(messages)) first = first ? first.concat(chunk) : chunk;
    assert.match(first.content, /323/);
    assert.ok(reasoningOf(first).length > 0);
    assert.ok(first.usage_metadata.output_tokens > 0);
    messages.push(first, new HumanMessage('Hello!'));
    assert.ok((await real.invoke(messages)).content.length > 0);
  });

  test(`${name}: texts arrive to the letter`, async () => {
    const whole = await replay.invoke('SCENE plain');
    assert.equal(whole.content, texts.content);
    assert.equal(reasoningOf(whole), texts.reasoning);
    assert.equal(whole.usage_metadata.input_token_details.cache_read, 3);
    let streamed = '';
    for await (const chunk of await replay.stream('SCENE plain')) streamed += chunk.content;
    assert.equal(streamed, texts.content);
  });

  test(`${name}: reasoning, text and two calls in one answer, then their results`, async () => {
    const model = replay.bindTools([getWeather]);
    const [first, second] = await loop(model, 'SCENE tools', ['4 degrees', '9 degrees']);
    assert.equal(first.content, texts.moment);
    assert.equal(reasoningOf(first), texts.reasoning);
    assert.deepEqual(first.tool_calls.map((call) => call.args.location), texts.cities);
    assert.equal(second.content, texts.final);

    let streamed;
    let pieces = 0;
    for await (const chunk of await model.stream('SCENE tools')) {
      pieces += chunk.tool_call_chunks.length;
      streamed = streamed ? streamed.concat(chunk) : chunk;
    }
    assert.deepEqual(streamed.tool_calls.map((call) => call.args.location), texts.cities);
    assert.equal(streamed.content, texts.moment);
    assert.ok(pieces > 6, 'arguments come as the model writes them');
  });

  test(`${name}: tokens are passed on when they come, and an abort ends the request on the server`, async () => {
    const abort = new AbortController();
    await assert.rejects(async () => {
      for await (const chunk of await replay.stream('SCENE endless', { signal: abort.signal })) {
        if (chunk.content) abort.abort();
      }
    }, /abort/i);
    await expectIdle(scenes);
  });

  test(`${name}: errors`, async () => {
    const fails = (model, status, pattern) => assert.rejects(model.invoke('x'), (error) =>
      error.status === status && pattern.test(error.message));
    await fails(create(scenes.baseURL, apiKey, { topP: 7 }), 400, /top_p/);
    await fails(create(scenes.baseURL, apiKey, { model: 'no-such-model' }), 404, /no-such-model/);
    await fails(create(scenes.baseURL, 'wrong'), 401, /./);
    await assert.rejects(async () => {
      for await (const chunk of await replay.stream('SCENE broken')) assert.ok(chunk);
    }, /engine failed/);
  });
}
