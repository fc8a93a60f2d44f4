# SPDX-License-Identifier: Apache-2.0
"""Lets SGLang 0.5.11 and 0.5.12 start where there is no sgl_kernel: they import ``sgl_kernel.kvcacheio`` whatever the device.

Nothing in here works, and nothing in here is called: the functions move key-value caches between GPUs and hosts.
"""
