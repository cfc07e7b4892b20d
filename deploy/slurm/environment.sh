{% if modules %}
# a batch shell need not know `module`
# shellcheck source=/dev/null
command -v module > /dev/null || source /etc/profile
{% for module in modules %}
module load {{ module | q }}
{% endfor %}

{% endif %}
{% if prolog %}
# shellcheck source=/dev/null
source {{ prolog | q }}

{% endif %}
export PYTHON={{ python | q }}
