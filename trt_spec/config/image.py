"""What is done to NVIDIA's images so that this project runs in them."""

WORKSPACE = "/workspace"  # where the project directory is mounted
# What this project needs and an image may lack. What else it depends on (torch, transformers, tokenizers) an image has,
# and its own must stay: TensorRT-LLM is built against them. Hence `pip install --no-deps` of the project itself.
REQUIREMENTS = (
    "pydantic>=2.10,<3",
    "ruamel.yaml>=0.18",
    "click>=8.1",
    "rich>=13.7",
    "packaging>=23",
    "safetensors>=0.5",
    "jinja2>=3.1",
)
