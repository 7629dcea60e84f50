// What RedisStore does atomically, in Lua. Used by redis_store.cc.
#ifndef WEFT_COLLECTIVES_STORE_REDIS_REDIS_SCRIPTS_H_
#define WEFT_COLLECTIVES_STORE_REDIS_REDIS_SCRIPTS_H_

namespace weft::collectives::redis {

// KEYS: values, versions, counter, channels, served. `touch` tells whoever waits for a key.
inline constexpr const char* kTouch = R"(
local function touch(k)
  redis.call('HSET', KEYS[2], k, redis.call('INCR', KEYS[3]))
  redis.call('PUBLISH', KEYS[4] .. k, '1')
end
)";
inline constexpr const char* kSet = R"(
for i = 1, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) touch(ARGV[i]) end
return 1)";
// As text: Lua's numbers are doubles.
inline constexpr const char* kAdd = R"(
redis.call('HINCRBY', KEYS[1], ARGV[1], ARGV[2])
touch(ARGV[1])
return redis.call('HGET', KEYS[1], ARGV[1]))";
inline constexpr const char* kCompareSet = R"(
local held = redis.call('HGET', KEYS[1], ARGV[1])
if held == ARGV[2] or (not held and ARGV[2] == '') then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
  touch(ARGV[1])
  return ARGV[3]
end
return held or ARGV[2])";
inline constexpr const char* kDelete = R"(
local gone = redis.call('HDEL', KEYS[1], ARGV[1])
if gone == 1 then
  redis.call('HDEL', KEYS[2], ARGV[1])
  redis.call('PUBLISH', KEYS[4] .. ARGV[1], '0')
end
return gone)";
inline constexpr const char* kAppend = R"(
local held = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if #held + #ARGV[2] > tonumber(ARGV[3]) then return redis.error_reply('TOOLONG') end
redis.call('HSET', KEYS[1], ARGV[1], held .. ARGV[2])
touch(ARGV[1])
return 1)";
inline constexpr const char* kMissing = R"(
local missing = {}
for i = 1, #ARGV do
  if redis.call('HEXISTS', KEYS[1], ARGV[i]) == 0 then missing[#missing + 1] = ARGV[i] end
end
return missing)";
// ARGV: group's hash, its key, operation and root, size, rank, value.
inline constexpr const char* kEnter = R"(
local g = ARGV[1]
if redis.call('SISMEMBER', KEYS[5], ARGV[2]) == 1 then return redis.error_reply('SERVED') end
local what = redis.call('HGET', g, 'what')
if what and what ~= ARGV[3] .. ARGV[4] then return redis.error_reply('MISMATCH ' .. what) end
if redis.call('HSETNX', g, 'r' .. ARGV[5], ARGV[6]) == 0 then return redis.error_reply('TWICE') end
redis.call('HSET', g, 'what', ARGV[3] .. ARGV[4])
if redis.call('HLEN', g) - 1 == tonumber(ARGV[4]) then
  redis.call('SADD', KEYS[5], ARGV[2])
  redis.call('EXPIRE', g, ARGV[7])
  redis.call('PUBLISH', KEYS[4] .. g, '1')
  return 1
end
return 0)";
// ARGV: group's hash, its key, rank. 1: it is complete after all.
inline constexpr const char* kLeave = R"(
if redis.call('SISMEMBER', KEYS[5], ARGV[2]) == 1 then return {'1'} end
local here = redis.call('HKEYS', ARGV[1])
redis.call('HDEL', ARGV[1], 'r' .. ARGV[3])
if redis.call('HLEN', ARGV[1]) == 1 then redis.call('DEL', ARGV[1]) end
return here)";

}  // namespace weft::collectives::redis

#endif  // WEFT_COLLECTIVES_STORE_REDIS_REDIS_SCRIPTS_H_
