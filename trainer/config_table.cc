// The one table of a training run's keys. docs/training-keys.md is generated from it.
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "trainer/config.h"

namespace weft::train {
namespace {

constexpr SettingType kBool = SettingType::kBool;
constexpr SettingType kInteger = SettingType::kInteger;
constexpr SettingType kReal = SettingType::kReal;
constexpr SettingType kBytes = SettingType::kBytes;
constexpr SettingType kDuration = SettingType::kDuration;
constexpr SettingType kText = SettingType::kText;
constexpr SettingType kChoice = SettingType::kChoice;

// clang-format off
constexpr auto kTable = std::to_array<SettingRow>({
    {"model.preset", kChoice, "none", "none|gpt-13b|gpt-175b|gpt-530b|gpt2-124m|llama-160m", "A model by name, for the keys of [model] that are not given themselves; the vocabulary is the data's."},
    {"model.style", kChoice, "none", "none|gpt2|llama|neox|mixtral", "An architecture by name, for the keys block, position, activation, norm, tied, bias and experts that are not given themselves."},
    {"model.layers", kInteger, "6", "1..1024", "Transformer blocks."},
    {"model.hidden", kInteger, "256", "8..65536", "Width of the residual stream; a multiple of model.heads."},
    {"model.heads", kInteger, "4", "1..1024", "Attention heads."},
    {"model.kv_heads", kInteger, "0", "0..1024", "Heads of keys and values (grouped-query attention), each for as many heads of queries; 0 takes model.heads."},
    {"model.ffn", kInteger, "0", "0..1048576", "Inner width of the feed-forward part; 0 takes 4 x hidden, or 8/3 x hidden rounded up to 32 with swiglu."},
    {"model.sequence", kInteger, "256", "2..1048576", "Tokens of a sample."},
    {"model.window", kInteger, "0", "0..1048576", "Sliding-window attention: the newest tokens that a token attends to, itself among them; 0: all before it."},
    {"model.window_layers", kText, "all", "", "Layers with the window, the first is 0: all, even, odd, or a list as 0-3,6; the others attend to everything."},
    {"model.experts", kInteger, "0", "0..1024", "Mixture of experts: feed-forward parts of a layer, of which a token takes some; 0 or 1: one for all tokens."},
    {"model.experts_per_token", kInteger, "2", "1..1024", "Experts that a token takes, those of the router's highest probabilities; their outputs are weighted by these."},
    {"model.capacity_factor", kReal, "0", "0..1e6", "Capacity of an expert: how many choices of a sample's tokens it takes, as a multiple of its even share, in the order of the tokens; further choices are dropped. 0 drops none."},
    {"model.balance_loss", kReal, "0.01", "0..", "Weight of the load-balancing loss of each layer with experts."},
    {"model.router_z_loss", kReal, "0.001", "0..", "Weight of the router z loss (mean of the squared log of sums of the router's logits) of each layer with experts."},
    {"model.block", kChoice, "serial", "serial|parallel", "serial: attention, then feed-forward; parallel: both from one norm, y = x + attention(norm(x)) + ffn(norm(x))."},
    {"model.position", kChoice, "learned", "learned|rotary", "How positions are encoded: a learned vector for each, or rotations of queries and keys."},
    {"model.activation", kChoice, "gelu", "gelu|swiglu", "Nonlinearity of the feed-forward part; gelu is the tanh form of GPT-2."},
    {"model.norm", kChoice, "layernorm", "layernorm|rmsnorm", "Normalisation before attention, before the feed-forward part and at the end."},
    {"model.tied", kBool, "true", "", "The output projection is the token embedding."},
    {"model.bias", kBool, "true", "", "Linear layers and LayerNorm have a bias."},
    {"model.dropout", kReal, "0", "0..0.9", "Part of the embeddings and of each branch's output that is dropped in training."},
    {"model.norm_epsilon", kReal, "1e-5", "0..1", "Added to the variance in norms."},
    {"model.rotary_base", kReal, "10000", "1..", "Base of the rotary frequencies."},
    {"model.rotary_scaling", kChoice, "none", "none|linear|ntk|llama3", "Rotary frequencies for longer samples: linear divides all by the factor, ntk raises the base, llama3 divides those whose wavelength is long compared with model.rotary_original, as Llama 3.1."},
    {"model.rotary_factor", kReal, "1", "1..1e6", "With model.rotary_scaling: how many times longer the samples are."},
    {"model.rotary_original", kInteger, "0", "0..", "With model.rotary_scaling = llama3: tokens of a sample before scaling."},

    {"optimizer.name", kChoice, "adamw", "adamw|lamb|sgd|lion|muon", "The rule of an update. lamb scales AdamW's step for each parameter by its norm; muon makes the momentum of each block's matrices orthogonal and leaves the other parameters to AdamW."},
    {"optimizer.learning_rate", kReal, "1e-3", "0..", "The highest learning rate."},
    {"optimizer.min_learning_rate", kReal, "1e-4", "0..", "Where the decay ends."},
    {"optimizer.schedule", kChoice, "cosine", "cosine|constant|linear|wsd|inverse_sqrt", "How the learning rate falls after the warm-up: as half a cosine, not at all, linearly, at the end alone (warm-up, stable, decay), or with the inverse root of the step, not below min_learning_rate (training.md has the formulas)."},
    {"optimizer.warmup_steps", kInteger, "100", "0..", "Steps over which the learning rate rises linearly from 0."},
    {"optimizer.decay_steps", kInteger, "0", "0..", "cosine, linear, wsd: the step at which min_learning_rate is reached; 0 takes train.steps."},
    {"optimizer.decay_fraction", kReal, "0.1", "0..1", "wsd: the part of decay_steps, at their end, in which the learning rate falls."},
    {"optimizer.beta1", kReal, "0.9", "0..0.9999999", "AdamW, LAMB, Muon's other parameters: decay of the gradient's running mean. Lion: weight of that mean in a step."},
    {"optimizer.beta2", kReal, "0.95", "0..0.9999999", "AdamW, LAMB, Muon's other parameters: decay of the squared gradient's running mean. Lion: decay of the gradient's running mean."},
    {"optimizer.epsilon", kReal, "1e-8", "1e-20..1", "AdamW, LAMB, Muon's other parameters: added to the root of the second moment."},
    {"optimizer.weight_decay", kReal, "0.1", "0..10", "Weight decay of matrices and embeddings, decoupled from the gradient; SGD adds it to the gradient."},
    {"optimizer.momentum", kReal, "0.95", "0..0.9999999", "SGD, Muon: decay of the momentum."},
    {"optimizer.nesterov", kBool, "true", "", "SGD, Muon: take the step that the momentum will have."},
    {"optimizer.lamb_bias_correction", kBool, "true", "", "LAMB: correct the running means for their beginning at 0, as AdamW does."},
    {"optimizer.lamb_norm_clip", kReal, "0", "0..", "LAMB: the largest norm of a parameter that counts in its trust ratio; 0 does not clip."},
    {"optimizer.decay_all", kBool, "false", "", "Decay norms and biases, too."},
    {"optimizer.clip", kReal, "1", "0..", "Largest norm of the gradient over all parameters; 0 does not clip."},

    {"train.steps", kInteger, "1000", "0..", "Optimizer steps of the whole run."},
    {"train.global_batch", kInteger, "16", "1..16777216", "Samples a step over all ranks; a multiple of the number of ranks."},
    {"train.micro_batch", kInteger, "0", "0..", "Samples that a rank computes at once; gradients are summed over the micro-batches of a step. 0: a rank's whole share of a step or, with a pipeline, that share cut into so many parts that a step is shortest: many make the bubble small, few have large products. Fewer where ranks outnumber the cores of their one host, as other ranks have the cores of a stage that waits."},
    {"train.seed", kInteger, "1", "0..", "Draws the initial parameters, the order of the data, dropout and the sample text."},
    {"train.device", kChoice, "cpu", "cpu|cpu-aten|cuda", "What a rank computes on. cuda: one GPU for each rank; needs a LibTorch with CUDA (gpu.md). cpu-aten: the CPU, but with the code that GPUs use (LibTorch's operations, collectives through copies): slower, for tests of that code."},
    {"train.graphs", kChoice, "off", "off|auto", "With train.device = cuda: auto launches the passes of a step as CUDA graphs where they can be (gpu.md), which saves the host's time of launching kernels one by one; a log says where they cannot. off, as graphs have not run on a GPU yet."},
    {"train.precision", kChoice, "auto", "auto|fp32|bf16|fp16", "Number type of parameters and activations in computation; auto takes bf16 where the CPU multiplies it faster than fp32 (AMX; AVX512-BF16 of AMD's), else fp32. Optimizer state is fp32 always, parameters besides unless train.master_weights is false. fp16 needs a loss scale and is for trying it: CPUs compute it slowly."},
    {"train.master_weights", kBool, "true", "", "With bf16: keep fp32 values beside the parameters. false keeps bf16 alone, which an update rounds up or down by chance, so that small steps count on average."},
    {"train.loss_scale", kReal, "65536", "1..1e9", "fp16: what the loss is multiplied by at the beginning, so that small gradients are not lost. A step that is not finite is left out and halves it."},
    {"train.loss_scale_steps", kInteger, "1000", "1..", "fp16: finite steps in a row that double the loss scale."},
    {"train.non_finite", kChoice, "fatal", "fatal|skip", "What a loss or gradient that is not finite does: end the run, or leave the step out and say so in metrics.jsonl."},
    {"train.recompute", kText, "none", "none|selective|full, or of layers: full:0-3,selective:4-7", "Activations that are not kept but computed again in the backward pass, of all blocks or of some: selective those of attention's core and the nonlinearity, full all but a block's input."},
    {"train.gemm", kChoice, "auto", "auto|aten|weft|onednn", "What multiplies matrices: aten is LibTorch with MKL in fp32 and oneDNN in bf16, onednn LibTorch's oneDNN in fp32 as well (CPUs with AVX-512), weft the loops of this program. auto tries them at the start of a run and takes the fastest for each product of a step; a resumed run keeps what its checkpoint had."},
    {"train.pack_weights", kBool, "true", "", "Where the loops of this program multiply: packs the weights once a step in place of once a product, for steps of several micro-batches of up to 512 tokens, and the output projection for a loss in several chunks of rows. The bits are the same. Takes memory for two copies of the matrices; not with parallel.zero = 3, nor where a host has no room for them."},
    {"train.attention", kChoice, "auto", "auto|aten|weft", "What computes attention: aten is LibTorch's flash attention, weft the loops of this program. auto tries both at the start of a run and takes the faster, for layers with a window and for layers without one; a resumed run keeps what its checkpoint had."},
    {"train.loss_rows", kInteger, "0", "0..", "Tokens whose logits are computed at one time: their loss and gradients are made before the next ones', and the logits of a micro-batch never exist together. 0 takes as many tokens as have logits of 16 MiB, which a cache holds, and at least 256; on a GPU, as many as have logits of 256 MiB."},
    {"train.threads", kInteger, "0", "0..1024", "Compute threads of a rank; 0 takes OMP_NUM_THREADS, or else the cores divided by the ranks of this host."},
    {"train.host_memory", kBytes, "0", "0..1048576GiB", "Memory that the ranks of a host may take by the estimate; a run that needs more is refused. 0 takes the machine's, or that of its control group."},
    {"train.tensorboard", kBool, "false", "", "Writes the numbers of metrics.jsonl for TensorBoard as well, into RUN/tensorboard."},
    {"train.peak_tflops", kReal, "0", "0..", "Peak of one rank in TFLOP/s, for the metric mfu; 0 measures it with a matrix product at the start."},

    {"parallel.tensor", kInteger, "1", "1..1024", "Ranks that share each layer: its matrices are cut over them, and between the matrix products the rows of its activations (sequence parallelism). Divides model.heads and, without experts, model.ffn."},
    {"parallel.tensor_chunks", kInteger, "0", "0..64", "Pieces in which the tensor axis exchanges activations, so that one piece is multiplied while the next is under way. 0: 2, or 1 where that hides nothing: on the CPU, if the axis' ranks share a host on which ranks compute on every core, since they move the bytes themselves."},
    {"parallel.tensor_gathered", kChoice, "auto", "auto|again|keep", "Whether the backward pass gathers the rows before a product along the tensor axis again, or keeps those of the forward pass, which takes memory for them and saves a fifth of the exchanges of a layer. auto: keep where parallel.tensor_chunks = 0 would take one piece and there is room, else again."},
    {"parallel.context", kInteger, "1", "1..1024", "Ranks that share each sample: its tokens are cut over them (context parallelism). model.sequence is a multiple of it, and with ring of twice as much."},
    {"parallel.context_method", kChoice, "ring", "ring|ulysses", "How attention sees the tokens of other ranks: ring passes keys and values on while attention on them is computed; ulysses exchanges heads for tokens, in pieces, while attention on other pieces is computed, and parallel.tensor x parallel.context divides model.heads."},
    {"parallel.expert", kInteger, "1", "1..1024", "Data-parallel ranks that share the experts of each layer: divides the number of data-parallel ranks. With parallel.tensor, whose ranks share them as well, it divides model.experts."},
    {"parallel.expert_pieces", kInteger, "2", "1..64", "Pieces in which rows go to their experts and back, at least, so that one piece is computed while others are under way."},
    {"parallel.pipeline", kInteger, "1", "1..1024", "Stages of the pipeline; each holds a part of the layers. What the ranks leave beside the other axes is data-parallel."},
    {"parallel.schedule", kChoice, "1f1b", topology::kPipelineScheduleNames, "Order of the passes on a stage: gpipe, 1f1b, eager-1f1b (1f1b with more forward passes ahead, so that messages have time to travel; up to twice the activations), interleaved (several chunks of layers a stage), zb-h1 and zb-v (zero bubble: gradients of weights fill the waits)."},
    {"parallel.chunks", kInteger, "0", "0..64", "Chunks of layers that a stage holds; 0 takes 2 with interleaved and zb-v, else 1."},
    {"parallel.stages", kText, "auto", "auto|even, or layers: 3.5,4,4,0.5", "Layers of each chunk of the pipeline, in the model's order; serial blocks may be cut in half, behind attention. auto weighs in the output projection, so that the stage with the most work has as little as can be."},
    {"parallel.replan", kChoice, "bitwise", "off|bitwise|any", "Whether the lists of zb-v are made anew, once, for the durations that passes had in steps 3 to 6 of a start: bitwise takes only lists that add up every gradient in the same order, so that losses stay the same to the bit; any also those that add up the gradient of a tied embedding in another order; off none. Other schedules do not depend on durations; on a GPU they are not measured."},
    {"parallel.receives_ahead", kInteger, "2", "0..64", "Passes of the pipeline ahead of the running one whose inputs are received under it; 0: a pass asks for its input when it is to run, and waits for the whole transfer."},
    {"parallel.collectives", kChoice, "auto", "auto|staged|nccl", "What moves a GPU's tensors between ranks: nccl where they are, beside the computation; staged copies them through host memory. auto is nccl with train.device = cuda where every rank has a GPU of its own and libweft-cuda.so is there."},
    {"parallel.overlap", kText, "all", "all|none, or axes: data,tensor,context,expert", "Axes whose communication runs while a rank computes. On every other axis a rank waits for each exchange as soon as it begins it, and exchanges along the tensor axis are not cut into parallel.tensor_chunks pieces, nor those of ulysses into pieces of heads. For the pipeline's communication see parallel.receives_ahead."},
    {"parallel.zero", kInteger, "1", "0..3", "0: every data-parallel rank has all training state; 1: optimizer state is sharded over the ranks; 2: accumulated gradients, too; 3: parameters, too, which are gathered before a block uses them and freed afterwards."},
    {"parallel.zero_group", kInteger, "0", "0..65536", "Ranks that share training state between them; groups of so many data-parallel ranks are replicas of each other. Divides the data-parallel ranks; 0 takes all of them. With experts, a value above parallel.context x parallel.expert is a multiple of that product."},
    {"parallel.bucket_bytes", kBytes, "4MiB", "1KiB..4GiB", "Gradients are handed to one reduce-scatter once so many bytes of them are complete."},
    {"parallel.reduce_precision", kChoice, "auto", "auto|compute|fp32", "Number type in which gradients are summed: the compute type, or fp32; auto takes fp32 where several micro-batches add up."},

    {"data.prefix", kText, "", "a prefix, or a blend: 0.7 data/web, 0.3 data/books", "What weft-data made: PREFIX_train.{bin,idx}, PREFIX_valid.{bin,idx}, PREFIX.json; a relative path is looked up from the working folder. Several datasets of one tokenizer, each behind its weight, are drawn from in that proportion; their prefixes have no commas."},
    {"data.prefetch", kInteger, "2", "0..64", "Batches that a rank reads ahead while it computes; 0: each is read in its own step."},

    {"validation.every", kInteger, "100", "0..", "Steps between measurements of the validation loss; 0 measures at the end only."},
    {"validation.batches", kInteger, "8", "1..", "Global batches of held-out data that one measurement takes (fewer where there are fewer)."},

    {"checkpoint.every", kInteger, "200", "0..", "Steps between checkpoints; 0 writes one at the end only."},
    {"checkpoint.keep", kInteger, "2", "1..1000", "Checkpoints to keep; older ones are deleted."},
    {"checkpoint.background", kBool, "false", "", "A thread in the background copies the state while the next step computes, and writes it; a checkpoint that is due before the previous one is written is left out. The last one of a run is waited for."},
    {"checkpoint.local_folder", kText, "", "", "A folder of this run alone on each host's own disk: checkpoints of the background go there, each rank's part to its host, and from there to the run's folder; needs checkpoint.background. --resume takes the newest that the hosts together, the run's folder or the remote one have."},
    {"checkpoint.remote_folder", kText, "", "", "A folder of this run alone, on another disk or a file system far away, to which whole checkpoints are copied in the background, as many as checkpoint.keep says; a copy that is due before the previous one is done is left out. --resume takes the newest of both."},
    {"checkpoint.remote_timeout", kDuration, "2m", "1s..24h", "How long the end of a run waits for its last copy in checkpoint.remote_folder; then the run ends without it, and says so."},

    {"sample.prompt", kText, "", "", "Beginnings of the sample texts, separated by `|`; empty begins a new document."},
    {"sample.tokens", kInteger, "120", "0..", "Tokens of each sample text; 0 writes none."},
    {"sample.count", kInteger, "1", "1..64", "Sample texts for each prompt."},
    {"sample.temperature", kReal, "0.8", "0..10", "0 takes the likeliest token always; higher draws more freely."},
    {"sample.top_k", kInteger, "40", "0..", "Draw among so many likeliest tokens; 0 among all."},

    {"log.every", kInteger, "0", "0..", "Steps between progress lines where there is no terminal; 0 prints one every few seconds."},
    {"log.progress", kChoice, "auto", "auto|bar|lines", "A bar that is redrawn, or lines; auto asks whether standard error is a terminal."},
    {"log.trace_steps", kInteger, "50", "0..100000", "How many of the last steps trace.json shows; 0 writes none."},
});
// clang-format on

}  // namespace

absl::Span<const SettingRow> TrainSettings() { return kTable; }

std::string TrainSettingsMarkdown() {
  std::string text =
      "# Keys of a training run\n\nPrinted by `weft-train --markdown`; what they do together: "
      "[training.md](training.md).\n";
  absl::string_view group;
  for (const SettingRow& row : kTable) {
    absl::string_view prefix = row.name.substr(0, row.name.find('.'));
    if (prefix != group) {
      group = prefix;
      absl::StrAppend(&text, "\n## [", group,
                      "]\n\n| key | default | allowed | what it does |\n|---|---|---|---|\n");
    }
    absl::StrAppend(
        &text, "| `", row.name.substr(prefix.size() + 1), "` | ",
        row.standard.empty() ? std::string("empty") : absl::StrCat("`", row.standard, "`"), " | ",
        absl::StrReplaceAll(row.allowed, {{"|", ", "}}), " | ",
        absl::StrReplaceAll(row.sentence, {{"|", "\\|"}}), " |\n");
  }
  return text;
}

}  // namespace weft::train
