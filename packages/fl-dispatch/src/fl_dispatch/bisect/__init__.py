# SPDX-License-Identifier: Apache-2.0
"""``fl-dispatch bisect``: which operators make a command's result bad.

``search`` halves (pure: it only asks for verdicts), ``judge`` runs a command and reads its exit status.
"""
