# SPDX-License-Identifier: Apache-2.0
"""``fl-dispatch tune``: measure every implementation on this device, and write the policy that follows from it.

``workloads`` makes the calls, ``timing`` the clocks, ``measure`` goes through all of them, ``choose`` turns figures into orders
(pure), ``policy_file`` and ``chart`` write what came out, ``policy_reader`` reads it to choose anew.
"""
