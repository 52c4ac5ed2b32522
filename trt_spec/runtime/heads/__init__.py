"""Draft heads by method."""

from trt_spec.runtime.heads.base import FeatureHead
from trt_spec.runtime.heads.eagle import EagleHead
from trt_spec.runtime.heads.eagle3 import Eagle3Head
from trt_spec.runtime.heads.loading import load_feature_head, load_medusa
from trt_spec.runtime.heads.medusa import MedusaHeads
from trt_spec.runtime.heads.mtp import MtpHead

__all__ = ["Eagle3Head", "EagleHead", "FeatureHead", "MedusaHeads", "MtpHead", "load_feature_head", "load_medusa"]
