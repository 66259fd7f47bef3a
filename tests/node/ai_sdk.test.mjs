// Vercel's AI SDK (`ai`) over the three providers that fit: OpenAI-compatible servers, DeepSeek's API, Anthropic's API.
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { createAnthropic } from '@ai-sdk/anthropic';
import { createDeepSeek } from '@ai-sdk/deepseek';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { APICallError, generateText, jsonSchema, stepCountIs, streamText, tool } from 'ai';
import { apiKey, expectIdle, serveNano, serveScenes, texts, weather } from './support.mjs';

const nano = await serveNano();
const scenes = await serveScenes();
after(() => Promise.all([nano.stop(), scenes.stop()]));

const providers = {
  // includeUsage: this provider asks for the usage of streams only when told to.
  '@ai-sdk/openai-compatible': (baseURL, key) =>
    createOpenAICompatible({ name: 'fathom', baseURL, apiKey: key, includeUsage: true }),
  '@ai-sdk/deepseek': (baseURL, key) => createDeepSeek({ baseURL, apiKey: key }),
  '@ai-sdk/anthropic': (baseURL, key) => createAnthropic({ baseURL, apiKey: key }),
};
const thinking = { anthropic: { thinking: { type: 'enabled', budgetTokens: 1024 } } };

for (const [name, create] of Object.entries(providers)) {
  const real = create(nano.baseURL, 'none')('fathom-nano');
  const replay = create(scenes.baseURL, apiKey)('fathom-nano');
  const anthropic = name === '@ai-sdk/anthropic';
  const ask = (model, prompt, more = {}) =>
    ({ model, prompt, maxRetries: 0, maxOutputTokens: 1000, ...(anthropic ? { providerOptions: thinking } :
      { temperature: 0 }), ...more });
  // Anthropic's thinking takes no temperature in this provider; greedy is then asked for with thinking off.
  const greedy = (more) => ask(real, weather.question,
    { temperature: 0, ...(anthropic ? { providerOptions: { anthropic: { thinking: { type: 'disabled' } } } } : {}),
      ...more });
  const tools = (calls) => ({ [weather.name]: tool({ description: weather.description,
    inputSchema: jsonSchema(weather.parameters),
    execute: (input) => { calls.push(input); return JSON.parse(weather.result); } }) });

  test(`${name}: fathom-nano calls a tool and uses its result`, async () => {
    const calls = [];
    const whole = await generateText(greedy({ tools: tools(calls), stopWhen: stepCountIs(3) }));
    assert.equal(whole.text, weather.answer);
    assert.deepEqual(calls, [{ location: 'Toronto' }]);
    assert.deepEqual(whole.steps.map((step) => step.finishReason), ['tool-calls', 'stop']);
    assert.equal(Boolean(whole.steps[0].reasoningText), !anthropic);
    assert.ok(whole.usage.inputTokens > 0 && whole.usage.outputTokens > 0);
    assert.ok(whole.usage.cachedInputTokens > 0, 'the second step continues the first');

    const stream = streamText(greedy({ tools: tools(calls), stopWhen: stepCountIs(3) }));
    assert.equal(await stream.text, weather.answer);
    assert.deepEqual(calls[1], calls[0]);
    assert.ok((await stream.totalUsage).outputTokens > 0);
  });

  test(`${name}: fathom-nano over several turns with reasoning`, async () => {
    const messages = [{ role: 'user', content: 'What is 17*19? Return only the final integer.' }];
    const first = await generateText({ ...ask(real), prompt: undefined, messages });
    assert.match(first.text, /323/);
    assert.ok(first.reasoningText.length > 0);
    if (!anthropic) assert.ok(first.usage.reasoningTokens > 0);
    messages.push(...first.response.messages, { role: 'user', content: 'Hello!' });
    const second = await generateText({ ...ask(real), prompt: undefined, messages });
    assert.ok(second.text.length > 0);
    assert.ok(second.usage.inputTokens > first.usage.inputTokens);
  });

  test(`${name}: texts arrive to the letter`, async () => {
    const whole = await generateText(ask(replay, 'SCENE plain'));
    assert.equal(whole.text, texts.content);
    assert.equal(whole.reasoningText, texts.reasoning);
    assert.equal(whole.usage.cachedInputTokens, 3);
    const stream = streamText(ask(replay, 'SCENE plain'));
    assert.equal(await stream.text, texts.content);
    assert.equal(await stream.reasoningText, texts.reasoning);
  });

  test(`${name}: reasoning, text and two calls in one answer, then their results`, async () => {
    for (const run of [generateText, streamText]) {
      const calls = [];
      const deltas = [];
      const answer = run(ask(replay, 'SCENE tools', { tools: tools(calls), stopWhen: stepCountIs(3),
        ...(run === streamText && { onChunk: ({ chunk }) => deltas.push(chunk.type) }) }));
      const { steps: whole } = await answer;
      const steps = await whole;  // a promise of its own when streamed
      assert.equal(steps.at(-1).text, texts.final);
      assert.equal(steps.length, 2);
      assert.equal(steps[0].reasoningText, texts.reasoning);
      assert.equal(steps[0].text, texts.moment);
      assert.deepEqual(calls.map((call) => call.location), texts.cities);
      if (run === streamText) {
        assert.ok(deltas.filter((type) => type === 'tool-input-delta').length > 6, 'arguments come in pieces');
      }
    }
  });

  test(`${name}: tokens are passed on when they come, and an abort ends the request on the server`, async () => {
    const abort = new AbortController();
    const parts = [];
    const stream = streamText(ask(replay, 'SCENE endless', { abortSignal: abort.signal }));
    for await (const part of stream.fullStream) {
      parts.push(part.type);
      if (part.type === 'text-delta') abort.abort();
    }
    assert.equal(parts.at(-1), 'abort');
    await expectIdle(scenes);
  });

  test(`${name}: errors and limits`, async () => {
    const fails = (options, status) => assert.rejects(generateText(options), (error) =>
      APICallError.isInstance(error) && error.statusCode === status && error.message.length > 0);
    await fails(ask(replay, 'x', { topP: 7, providerOptions: {} }), 400);
    await fails({ ...ask(replay, 'x'), model: create(scenes.baseURL, apiKey)('no-such-model') }, 404);
    await fails({ ...ask(replay, 'x'), model: create(scenes.baseURL, 'wrong')('fathom-nano') }, 401);
    assert.equal((await generateText(ask(replay, 'SCENE cut'))).finishReason, 'length');

    const errors = [];
    const broken = streamText(ask(replay, 'SCENE broken', { onError: ({ error }) => errors.push(error) }));
    await broken.consumeStream();
    assert.equal(errors.length, 1);
    assert.match(JSON.stringify(errors[0]) + errors[0].message, /engine failed/);
  });
}
