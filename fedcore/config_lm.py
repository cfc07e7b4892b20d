"""The `lm:` section: with it a configuration is a language-model run instead of a federated one."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from fedcore.config_section import (
    Count,
    Decay,
    Fraction,
    Place,
    Positive,
    PositiveFloat,
    Section,
    Share,
)


class LMModelConfig(Section):
    """A causal transformer; the switches are the ablations."""

    layers: Annotated[Positive, Field(le=10_000)] = 4
    """Transformer blocks."""
    width: Positive = 256
    """Width of the residual stream, d."""
    heads: Positive = 4
    """Attention heads; they divide `width`."""
    hidden: Positive | None = None
    """Width of the feed-forward layer, d_ff; null = 8/3 d for swiglu, else 4 d, in steps of 64."""
    context: Annotated[Positive, Field(le=4_194_304)] = 256
    """Tokens T in a sequence."""
    norm: Literal["rmsnorm", "layernorm", "none"] = "rmsnorm"
    """Normalisation of each sub-layer and of the output."""
    norm_place: Literal["pre", "post"] = "pre"
    """pre: x + f(norm(x)); post: norm(x + f(x))."""
    position: Literal["rope", "learned", "none"] = "rope"
    """How a token knows its place."""
    rope_theta: PositiveFloat = 10_000.0
    """Base of the rotary angles."""
    feed_forward: Literal["swiglu", "silu", "gelu"] = "swiglu"
    """Gated by SiLU (three matrices), or plain with SiLU or tanh-GELU (two)."""
    tied: bool = False
    """The output matrix is the token embedding."""
    bias: bool = False
    """Biases in all linear layers but the output, and in LayerNorm."""

    @model_validator(mode="after")
    def _divides(self) -> LMModelConfig:
        if self.width % self.heads:
            raise ValueError(
                f"heads that divide width, and {self.heads} does not divide {self.width}"
            )
        if self.position == "rope" and self.width // self.heads % 2:
            raise ValueError("rope turns pairs: width / heads must be even")
        return self

    @property
    def ff_width(self) -> int:
        """d_ff as used."""
        if self.hidden is not None:
            return self.hidden
        exact = self.width * 8 / 3 if self.feed_forward == "swiglu" else self.width * 4
        return max(64, 64 * round(exact / 64))


class LMDataConfig(Section):
    """Which text, and how it becomes tokens."""

    text: Place | None = None
    """Folder or file of the user's text; null = the Python standard library's own sources."""
    tokenizer: Literal["bytes", "bpe", "file"] = "bytes"
    """bytes: 256 values. bpe: trained on the text. file: `vocabulary`."""
    vocab_size: Positive = 8_192
    """Size of a trained bpe vocabulary."""
    vocabulary: Place | None = None
    """A tokenizer.json, or a folder with GPT-2's vocab.json and merges.txt."""
    held_out: Annotated[float, Field(gt=0, le=0.5)] = 0.05
    """Share of the documents that is never trained on."""
    seed: int = 0
    """Seed of which documents are held out, and who gets which: the same for all run seeds."""
    limit: Positive | None = None
    """Bytes of text taken at most, from a seeded choice of documents; null = all."""
    order: Literal["shuffled", "random", "ordered"] = "shuffled"
    """shuffled: each token once an epoch. random: windows drawn anew each step. ordered: as the
    text stands (a curriculum)."""
    partition: Literal["documents", "folders"] = "documents"
    """Federated: single documents, or whole folders (non-IID), are dealt out to the clients."""

    @model_validator(mode="after")
    def _has_vocabulary(self) -> LMDataConfig:
        if (self.tokenizer == "file") != (self.vocabulary is not None):
            raise ValueError("tokenizer: file and vocabulary: PATH go together")
        return self


class OptimizerConfig(Section):
    """Optimiser with decoupled weight decay: theta <- (1 - eta lam) theta - eta u."""

    name: Literal["adamw", "sgdm", "rmsprop", "signsgdm", "muon"] = "adamw"
    """The update u. muon: matrices by Muon, all else by AdamW."""
    lr: PositiveFloat = 1e-3
    """Learning rate eta at its peak."""
    weight_decay: Share = 0.1
    """Weight decay lam at its peak."""
    beta1: Decay = 0.9
    """Memory of the first moment (all optimisers but rmsprop)."""
    beta2: Decay = 0.95
    """Memory of the second moment (adamw, rmsprop)."""
    eps: PositiveFloat = 1e-8
    """Added to the root of the second moment."""
    muon_lr: PositiveFloat = 0.02
    """Peak learning rate of the matrices under muon; `lr` is that of all else."""
    decay_norms: bool = False
    """Decay the scales of norms too."""
    decay_biases: bool = False
    """Decay biases too."""
    decay_embeddings: bool = True
    """Decay token and position embeddings too."""


class ScheduleConfig(Section):
    """How eta and lam move over the run."""

    name: str = "cosine"
    """constant, linear, cosine, wsd, inverse_sqrt, ema_constant_wd, ema_coupled_wd, ema_sqrt_exact
    (`fedcore lm schedules` lists them)."""
    warmup: Count = 0
    """Steps T_w in which eta rises to its peak."""
    from_zero: bool = False
    """Step 0 has eta 0 (as in CS336); false = it has the first of the T_w equal rises."""
    floor: Fraction = 0.1
    """Last eta over its peak (linear, cosine, wsd)."""
    cosine_steps: Positive | None = None
    """T_c: where the cosine ends and eta stays at its floor; null = the last step."""
    decay_share: Fraction = 0.2
    """Share of the run in which wsd decays."""
    weight_decay: str = "constant"
    """lam: constant; tied (lam = alpha eta); or a schedule of its own by name. The ema schedules
    bring their own."""


class ScaleForBatchConfig(Section):
    """eta and lam were tuned at another batch size; keep the memory in samples, B / (lam eta)."""

    reference: Positive
    """Batch size at which lr and weight_decay were tuned."""
    rule: Literal["raise_decay", "raise_lr", "both"] = "both"
    """With k = batch_size / reference: lam k-fold, eta k-fold, or both by sqrt k."""


class MonitorConfig(Section):
    """What is measured of the weights during training."""

    every: Positive = 50
    """Steps between measurements."""
    per_layer: bool = True
    """Measure each layer beside each parameter group."""
    target_rms: PositiveFloat | None = None
    """Hold each decayed matrix's RMS at this value by its own weight decay; null = off."""


class OuterConfig(Section):
    """The server's step on the mean of the clients' changes (DiLoCo, arXiv 2311.08105)."""

    lr: PositiveFloat = 0.7
    """Outer learning rate; 1 with momentum 0 is plain FedAvg."""
    momentum: Decay = 0.9
    """Outer momentum."""
    nesterov: bool = True
    """Nesterov's form of it."""
    weight_decay: Share = 0.0
    """Global pull lam_g to zero, once a round: theta <- theta (1 - lr lam_g) - lr ...; of what the
    clients decay."""


class LMFederatedConfig(Section):
    """Clients train on text of their own for H steps, then the server takes one step."""

    clients: Positive = 8
    """Number of clients N."""
    local_steps: Positive = 50
    """Optimiser steps H of each client in a round."""
    per_round: Positive | None = None
    """Clients drawn to take part in a round; null = all."""
    carry_optimizer: bool = True
    """Each client keeps its optimiser's memory from round to round."""
    outer: OuterConfig = OuterConfig()
    """The server's optimiser."""

    @field_validator("per_round")
    @classmethod
    def _of_clients(cls, value: int | None, info: ValidationInfo) -> int | None:
        clients = info.data.get("clients")
        if value is not None and clients is not None and value > clients:
            raise ValueError(f"at most lm.federated.clients={clients}")
        return value


class LMConfig(Section):
    """A language-model run."""

    steps: Positive = 1_000
    """Optimiser steps T (federated: of each client)."""
    batch_size: Positive = 32
    """Sequences in an optimiser step, over all ranks (federated: of one client)."""
    accumulate: Positive = 1
    """Forward passes a step is cut into on each rank."""
    max_norm: PositiveFloat = 1.0
    """The global gradient norm is clipped to this."""
    engine: Literal["plain", "deepspeed", "accelerate"] = "plain"
    """plain: torch, with DDP on several ranks."""
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 1
    """DeepSpeed: what is sharded over the ranks. 1 optimiser, 2 gradients too, 3 weights too."""
    offload: Literal["none", "optimizer", "all"] = "none"
    """DeepSpeed: keep the optimiser's memory (stage 1-3), or the weights too (3), in CPU memory."""
    activation_checkpointing: bool = False
    """Compute each block again in the backward pass instead of keeping its activations."""
    compile: bool = False
    """torch.compile the model."""
    log_every: Positive = 10
    """Steps between lines of metrics.jsonl; the device is only waited for then."""
    eval_batches: Positive = 16
    """Batches of held-out text in an evaluation; the last one of a run reads all of it."""
    model: LMModelConfig = LMModelConfig()
    data: LMDataConfig = LMDataConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    scale_for_batch: ScaleForBatchConfig | None = None
    monitor: MonitorConfig = MonitorConfig()
    federated: LMFederatedConfig | None = None

    @model_validator(mode="after")
    def _goes_together(self) -> LMConfig:
        if self.offload == "all" and self.zero_stage != 3:
            raise ValueError("offload: all goes with zero_stage: 3")
        if self.offload != "none" and (self.engine != "deepspeed" or self.zero_stage == 0):
            raise ValueError("offload needs engine: deepspeed and a zero_stage of 1, 2 or 3")
        sharded = self.engine == "deepspeed" and self.zero_stage > 0
        if self.optimizer.name == "muon" and sharded:
            raise ValueError("muon needs whole matrices: engine: plain, or zero_stage: 0")
        if self.federated and self.engine != "plain":
            raise ValueError("federated clients are trained by engine: plain")
        return self
