"""What the engine remembers of the live sequence: keys and values now, recurrent state beside them later."""

from engine.state.kv_cache import KvCache, KvHandles, KvView, PlainFormat, plain_format, reserve_kv

__all__ = ["KvCache", "KvHandles", "KvView", "PlainFormat", "plain_format", "reserve_kv"]
