# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Ready callbacks for training frameworks, laconic.jax and laconic.keras. Each module imports its framework; laconic imports none.

    from laconic.integrations.transformers import LaconicCallback   # Hugging Face Trainer
    from laconic.integrations.lightning import LaconicCallback      # lightning.pytorch, pytorch_lightning
"""
