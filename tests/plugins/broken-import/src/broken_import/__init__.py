# SPDX-License-Identifier: Apache-2.0
"""As if the SDK's shared library were built for another torch."""

raise ImportError("libbroken.so: undefined symbol: _ZN3c106detail14torchCheckFail")
