# frozen_string_literal: true

require_relative "test_helper"
require_relative "agent"

return if RUBY_ENGINE == "jruby" # the example uses the Ruby in the path
# It takes seconds, and once is enough.
return unless StatsD::Instrument::NATIVE

# The example of the repository (docs/examples/README.md): the agent, a service in Go and one in Ruby.
class ExamplesTest < TestCase
  SCRIPT = File.expand_path("../../../docs/examples/run.sh", __dir__)
  KINDS = {
    "shop.orders" => "counter", "shop.queue.length" => "gauge", "shop.order.value" => "distribution",
    "shop.visitors" => "set", "shop.request.time" => "histogram"
  }.freeze

  def get(page, path)
    JSON.parse(Net::HTTP.get(URI.join(page, path)))
  end

  def languages(page, name)
    get(page, "/api/v1/query?metric=#{name}&by=lang").fetch("groups").map { |group| group["tags"].to_h["lang"] }.sort
  end

  def kinds(page)
    get(page, "/api/v1/metrics?match=shop.*").fetch("metrics").to_h { |one| one.values_at("name", "kind") }
  end

  def test_the_page_shows_what_both_services_report
    skip "the example is not part of the gem" unless File.exist?(SCRIPT)
    skip "there is no Go" unless system("go", "version", out: File::NULL)
    output = IO.popen([{ "WEIR_BIN" => Agent.binary }, SCRIPT, "300"], err: %i[child out])
    text = +""
    wait_until("the page") { (text << output.gets.to_s).include?("open http") || flunk(text) }
    page = text[%r{open (http://\S+)}, 1]
    wait_until("every kind of metric") { kinds(page).slice(*KINDS.keys) == KINDS }
    KINDS.each_key { |name| wait_until("#{name} of both") { languages(page, name) == %w[go ruby] } }
    Process.kill("TERM", output.pid)
    text << output.read
    output.close
    assert_equal 130, $?.exitstatus, text
    # A packet for which an agent that is stopped has no room may be dropped.
    %w[Go Ruby].each do |language|
      numbers = text.match(/^#{language}: [1-9]\d* metrics in ([1-9]\d*) packets, (\d+) /)
      assert_operator numbers[2].to_i, :<, numbers[1].to_i, text
    end
  ensure
    Process.kill("TERM", output.pid) if output && !output.closed?
  end

  def test_a_wrong_length_is_refused
    output = IO.popen([SCRIPT, "soon"], err: %i[child out], &:read)
    assert_equal "SECONDS must be a whole number above 0, not soon\n", output
    assert_equal 2, $?.exitstatus
  end
end
