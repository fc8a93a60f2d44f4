from sglang_fl.dispatch.backends import Backend


class MyOldChipBackend(Backend):
    _available = None

    @property
    def name(self) -> str:
        return "my_old_chip"

    def is_available(self) -> bool:
        if MyOldChipBackend._available is None:
            try:
                import my_old_chip_sdk
                MyOldChipBackend._available = my_old_chip_sdk.device_count() > 0
            except ImportError:
                MyOldChipBackend._available = False
        return MyOldChipBackend._available

    def silu_and_mul(self, obj, x):
        from .impl.activation import silu_and_mul_my_old_chip
        return silu_and_mul_my_old_chip(obj, x)

    def rms_norm(self, obj, x, residual=None):
        from .impl.normalization import rms_norm_my_old_chip
        return rms_norm_my_old_chip(obj, x, residual)

    def rotary_embedding(self, obj, query, key, cos, sin, position_ids,
                         rotary_interleaved=False, inplace=True):
        from .impl.rotary import rotary_embedding_my_old_chip
        return rotary_embedding_my_old_chip(
            obj, query, key, cos, sin, position_ids, rotary_interleaved, inplace
        )
