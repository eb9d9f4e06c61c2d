"""Small chat templates, each with a trait that templates of well-known models have."""

# ruff: noqa: E501  a line of a template is a line

from __future__ import annotations

#: Qwen 3: thoughts only after the last question, where an answer always has room for them; calls as
#: JSON, and their results in a turn of the user.
STRIPPED = """{%- set last = namespace(user=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{%- if m.role == 'tool' %}{{- '<|im_start|>user\\n<result>' + m.content + '</result><|im_end|>\\n' }}
{%- elif m.role == 'assistant' %}
{%- set thought, answer = m.reasoning_content or '', m.content %}
{%- if '</think>' in m.content %}
{%- set thought = m.content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
{%- set answer = m.content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{- '<|im_start|>assistant\\n' }}
{%- if loop.index0 > last.user and (loop.last or thought) %}
{{- '<think>\\n' + thought + '\\n</think>\\n\\n' }}
{%- endif %}
{{- answer }}
{%- for call in m.tool_calls or [] %}
{{- '<call>' + call.function.name + (call.function.arguments | tojson) + '</call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- else %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}"""

#: Nemotron 3 and Qwen 3.5: the generation prompt opens thoughts, which turns may not have.
OPENED = """{%- set last = namespace(user=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{{- '<|im_start|>' + ('user' if m.role == 'tool' else m.role) + '\\n' }}
{%- if m.role == 'assistant' %}
{%- if m.reasoning_content and loop.index0 > last.user %}
{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n' }}
{%- else %}{{- '<think></think>' }}
{%- endif %}
{%- endif %}
{{- m.content }}
{%- for call in m.tool_calls or [] %}
{{- '<call>' + call.function.name + (call.function.arguments | tojson) + '</call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' + ('<think>\\n' if enable_thinking | default(true) else '<think></think>') }}
{%- endif %}"""

#: GPT-OSS: asks for the date; thoughts in a channel of their own, written in the last turn alone and
#: before calls that no answer follows; another token ends the last turn.
CHANNELS = """{{- '<|start|>system<|message|>It is ' + strftime_now('%Y-%m-%d') + '.<|end|>' }}
{%- for m in messages %}
{%- if m.role == 'assistant' and m.tool_calls %}
{%- set final = namespace(after=false) %}
{%- for n in messages[loop.index:] %}
{%- if n.role == 'assistant' and not n.tool_calls %}{% set final.after = true %}{% endif %}
{%- endfor %}
{%- if m.thinking and not final.after %}
{{- '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}
{%- endif %}
{%- set call = m.tool_calls[0].function %}
{{- '<|start|>assistant to=' + call.name + '<|channel|>commentary<|message|>' }}
{{- (call.arguments | tojson) + '<|call|>' }}
{%- elif m.role == 'assistant' and loop.last and not add_generation_prompt %}
{%- if m.thinking %}
{{- '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}
{%- endif %}
{{- '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|return|>' }}
{%- elif m.role == 'assistant' %}
{{- '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}
{%- else %}
{{- '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{% endif %}"""

#: Mistral Small: a system prompt with the date, no generation prompt, and no header for answers.
DATED = """{%- set system = 'It is ' + strftime_now('%d %B %Y') + '.' %}
{%- if messages[0].role == 'system' %}
{%- set system, messages = messages[0].content, messages[1:] %}
{%- endif %}
{{- '<s>[SYS]' + system + '[/SYS]' }}
{%- for m in messages %}
{%- if m.role == 'user' %}{{- '[INST]' + m.content + '[/INST]' }}
{%- elif m.role == 'assistant' and not m.tool_calls %}{{- m.content + '</s>' }}
{%- else %}{{- raise_exception('only questions and answers') }}
{%- endif %}
{%- endfor %}"""

#: DeepSeek V3 and R1: the prompt opens thoughts that are never written; arguments must be text.
DROPPED = """{{- '<s>' }}{% for m in messages %}
{%- if m.role == 'system' %}{{- m.content }}
{%- elif m.role == 'user' %}{{- '<|user|>' + m.content }}
{%- elif m.role == 'tool' %}{{- '<|tool|>' + m.content }}
{%- else %}
{{- '<|assistant|>' + m.content.split('</think>')[-1] }}
{%- for call in m.tool_calls or [] %}
{{- '<|call|>' + call.function.name + '\\n' + call.function.arguments }}
{%- endfor %}
{{- '</s>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|><think>\\n' }}{% endif %}"""

#: Phi 3: an EOS at the end of the whole conversation, and calls that are not known.
FINAL_EOS = """{%- for m in messages %}
{{- '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{% else %}{{- eos_token }}{% endif %}"""

#: Mistral 7B: the system's message moves to the last question.
MOVING_SYSTEM = """{%- set last = namespace(user=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}{% endfor %}
{{- '<s>' }}
{%- for m in messages %}
{%- if m.role == 'user' %}
{{- '[INST] ' }}
{%- if loop.index0 == last.user and messages[0].role == 'system' %}
{{- messages[0].content + '\\n\\n' }}
{%- endif %}
{{- m.content + '[/INST]' }}
{%- elif m.role == 'tool' %}{{- '[RESULT]' + m.content + '[/RESULT]' }}
{%- elif m.role == 'assistant' and m.tool_calls %}
{{- '[CALLS] ' + (m.tool_calls | map(attribute='function') | list | tojson) + '</s>' }}
{%- elif m.role == 'assistant' %}{{- ' ' + m.content + '</s>' }}
{%- endif %}
{%- endfor %}"""

#: Gemma: the system's message goes into the first question, and the assistant is the "model".
MERGED_SYSTEM = """{%- set first = '' %}
{%- if messages[0].role == 'system' %}
{%- set first, messages = messages[0].content + '\\n\\n', messages[1:] %}
{%- endif %}
{{- '<s>' }}
{%- for m in messages %}
{%- if m.role not in ('user', 'assistant') %}{{- raise_exception('no tools') }}{% endif %}
{{- '<|turn|>' + ('model' if m.role == 'assistant' else m.role) + '\\n' }}
{{- (first if loop.first else '') + m.content | trim + '<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|turn|>model\\n' }}{% endif %}"""

#: Alpaca: words for headers, separated by empty lines that the last turn lacks.
SEPARATED = """{%- for m in messages %}
{%- if m.role == 'system' %}{{- m.content }}
{%- elif m.role == 'user' %}{{- '### Instruction:\\n' + m.content }}
{%- elif m.role == 'assistant' %}{{- '### Response:\\n' + m.content + eos_token }}
{%- endif %}
{%- if not loop.last %}{{- '\\n\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '\\n\\n### Response:\\n' }}{% endif %}"""

#: GLM: the next turn's token closes a turn; thoughts only after the last question.
OPEN_ENDED = """{%- set last = namespace(user=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}{% endfor %}
{{- '<s>' }}
{%- for m in messages %}
{{- '<|' + m.role + '|>\\n' }}
{%- if m.role == 'assistant' %}
{{- '<think>' + (m.reasoning_content or '' if loop.index0 > last.user else '') + '</think>\\n' }}
{%- endif %}
{{- m.content }}
{%- for call in m.tool_calls or [] %}
{{- '<call>' + call.function.name + (call.function.arguments | tojson) + '</call>' }}
{%- endfor %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{% endif %}"""

#: Llama 3.1: a call takes the place of the content.
CALL_OR_CONTENT = """{{- '<s>' }}
{%- for m in messages %}
{{- '<|head|>' + ('ipython' if m.role == 'tool' else m.role) + '<|/head|>\\n\\n' }}
{%- if m.tool_calls %}
{{- '{"name": "' + m.tool_calls[0].function.name + '", "parameters": ' }}
{{- (m.tool_calls[0].function.arguments | tojson) + '}' }}
{%- else %}{{- m.content | trim }}
{%- endif %}
{{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|head|>assistant<|/head|>\\n\\n' }}{% endif %}"""

TEMPLATES = {
    "stripped": STRIPPED,
    "opened": OPENED,
    "channels": CHANNELS,
    "dated": DATED,
    "dropped": DROPPED,
    "final-eos": FINAL_EOS,
    "moving-system": MOVING_SYSTEM,
    "merged-system": MERGED_SYSTEM,
    "separated": SEPARATED,
    "open-ended": OPEN_ENDED,
    "call-or-content": CALL_OR_CONTENT,
}

#: The special tokens of all of them.
SPECIAL = (
    "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start|>", "<|end|>", "<|message|>",
    "<|channel|>", "<|call|>", "<|return|>", "<|user|>", "<|assistant|>", "<|system|>", "<|tool|>",
    "<|turn|>", "<|head|>", "<|/head|>", "<|eot_id|>", "[INST]", "[/INST]", "[SYS]", "[/SYS]",
    "[RESULT]", "[/RESULT]", "[CALLS]",
)  # fmt: skip
