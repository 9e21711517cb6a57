# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Ready callbacks for training frameworks. Each module imports its framework; laconic itself imports none of them.

    from laconic.integrations.transformers import LaconicCallback   # Hugging Face Trainer
    from laconic.integrations.lightning import LaconicCallback      # lightning.pytorch, pytorch_lightning
"""
