# frozen_string_literal: true

require_relative "test_helper"

# The code of docs/rails.md, with the gems of which it speaks, each in a process of its own.
class RailsTest < TestCase
  BLOCKS = File.read(File.expand_path("../docs/rails.md", __dir__)).scan(/^```ruby\n(.*?)^```$/m).flatten.freeze
  # Prints what the block sends; numbers of times become T.
  CAPTURE = <<~RUBY
    require "statsd-instrument"
    StatsD.logger = Logger.new($stdout, formatter: proc { |_, _, _, text| text + "\\n" })
    def sent(&block)
      StatsD.singleton_client.capture(&block).each { |one| puts one.source.sub(/:[\\d.e-]+\\|d/, ":T|d") }
    end
  RUBY

  def output_of(library, *code)
    check = %(begin; require "#{library}"; rescue LoadError; puts "missing"; exit; end)
    output, status = ruby([CAPTURE, check, *code].join("\n"), env: { "STATSD_ENV" => "test" })
    skip "the gem of #{library} is not installed" if output == "missing\n"
    assert_predicate status, :success?, output
    # Not of this library.
    output.lines.grep_v(/warning: /).join
  end

  def test_the_page_has_three_parts
    assert_equal(%w[notifications rack sidekiq], BLOCKS.map { |block| block[%r{require "statsd/instrument/(\w+)"}, 1] })
  end

  ACTIVE_SUPPORT = <<~RUBY
    require "active_support/notifications"
    notes = ActiveSupport::Notifications
    Mailer = Struct.new(:queue_name)
    module ActionDispatch
      module ExceptionWrapper
        def self.status_code_for_exception(name) = name == "NotFound" ? 404 : 500
      end
    end
    action = { controller: "ShopController", action: "show" }
    sent do
      notes.instrument("process_action.action_controller", **action, status: 200, db_runtime: 1.5, view_runtime: nil)
      notes.instrument("process_action.action_controller", **action, exception: ["NotFound", ""])
      notes.instrument("process_action.action_controller", **action)
      notes.instrument("perform.active_job", job: Mailer.new("mail"))
      begin
        notes.instrument("perform.active_job", job: Mailer.new("mail")) { raise "no" }
      rescue RuntimeError => e
        puts e.message
      end
      notes.instrument("sql.active_record", name: "User Load", sql: "/* app */ SELECT 1")
      notes.instrument("sql.active_record", name: "User Load", sql: "SELECT 1", cached: true)
      notes.instrument("sql.active_record", name: "SCHEMA", sql: "PRAGMA x")
      notes.instrument("sql.active_record", name: nil, sql: "vacuum \\xff")
      notes.instrument("perform.active_job", job: Object.new)
      puts "went on"
    end
    require "active_support/cache"
    store = ActiveSupport::Cache::MemoryStore.new
    sent do
      store.write("secret", 1)
      store.read("secret")
      store.read("other")
      store.exist?("other")
      store.delete("secret")
    end
  RUBY

  def test_active_support
    output = output_of("active_support", BLOCKS[0], ACTIVE_SUPPORT)
    request = "controller:ShopController,action:show"
    cache = "store:ActiveSupport::Cache::MemoryStore"
    assert_equal <<~TEXT, output.sub(/(?<=NoMethodError): .*/, "")
      no
      [StatsD::Instrument::Notifications] perform.active_job: NoMethodError
      went on
      rails.request:T|d|##{request},status:200
      rails.request.db:T|d|##{request},status:200
      rails.request:T|d|##{request},status:404
      rails.request:T|d|##{request},status:500
      rails.job:T|d|#class:Mailer,queue:mail
      rails.job:T|d|#class:Mailer,queue:mail
      rails.job.failed:1|c|#class:Mailer,queue:mail
      rails.sql:T|d|#name:User Load,operation:select
      rails.sql:T|d|#name:unknown,operation:other
      rails.cache:T|d|##{cache},operation:write
      rails.cache:T|d|##{cache},operation:read,hit:true
      rails.cache:T|d|##{cache},operation:read,hit:false
      rails.cache:T|d|##{cache},operation:exist
      rails.cache:T|d|##{cache},operation:delete
    TEXT
  end

  def test_subscriptions_end_and_are_chosen
    assert_equal <<~TEXT, output_of("active_support", <<~RUBY)
      rails.sql:T|d|#name:a,operation:insert
      no such events: [:mail]; use [:requests, :jobs, :sql, :cache]
    TEXT
      require "active_support/notifications"
      require "statsd/instrument/notifications"
      subscription = StatsD::Instrument::Notifications.subscribe(events: [:sql])
      report = proc do
        ActiveSupport::Notifications.instrument("sql.active_record", name: "a", sql: "(insert into b")
        ActiveSupport::Notifications.instrument("process_action.action_controller", status: 200)
      end
      sent(&report)
      subscription.unsubscribe
      sent(&report)
      begin
        StatsD::Instrument::Notifications.subscribe(events: [:mail])
      rescue ArgumentError => e
        puts e.message
      end
    RUBY
  end

  RACK = <<~RUBY
    require "rack/lint"
    require "rack/mock"
    require "rack/builder"
    app = lambda do |env|
      env["app.route"] = "/users/:id" if env["PATH_INFO"].start_with?("/users")
      raise "broken" if env["PATH_INFO"] == "/broken"
      [env["PATH_INFO"] == "/users/0" ? 404 : 200, { "content-type" => "text/plain" }, ["text"]]
    end
    stack = Rack::Builder.new do
      use Rack::Lint
      eval(BLOCK)
      use Rack::Lint
      run app
    end.to_app
    request = Rack::MockRequest.new(stack)
    sent do
      puts request.get("/users/1?secret=1").body
      request.post("/users/0")
      request.get("/else")
      request.request("BREW", "/users/1") rescue puts($!.class)
      begin
        request.get("/broken")
      rescue RuntimeError => e
        puts e.message
      end
    end
    plain = StatsD::Instrument::RackMetrics.new(->(_) { [302, {}, []] }, prefix: "web", tags: { app: "shop" })
    few = StatsD::Instrument::RackMetrics.new(->(_) { ["x", {}, []] }, max_routes: 2) { |env| env["PATH_INFO"] }
    wrong = StatsD::Instrument::RackMetrics.new(->(_) { [200, {}, []] }) { raise ArgumentError, "wrong" }
    sent do
      plain.call(Rack::MockRequest.env_for("/a"))
      4.times { |index| few.call(Rack::MockRequest.env_for("/\#{index % 3}")) }
      wrong.call(Rack::MockRequest.env_for("/"))
    end
  RUBY

  def test_rack
    output = output_of("rack", "BLOCK = #{BLOCKS[1].inspect}", RACK)
    both = lambda do |tags, prefix = "rack"|
      "#{prefix}.requests:1|c|##{tags}\n#{prefix}.request.time:T|d|##{tags}\n"
    end
    assert_equal [
      "text\nbroken\n",
      both["method:GET,status:2xx,route:/users/:id"], both["method:POST,status:4xx,route:/users/:id"],
      both["method:GET,status:2xx,route:unknown"], both["method:other,status:2xx,route:/users/:id"],
      both["method:GET,status:5xx,route:unknown"],
      "[StatsD::Instrument::RackMetrics] the block for the route raised ArgumentError: wrong\n",
      both["app:shop,method:GET,status:3xx", "web"],
      %w[/0 /1 other /0].map { |route| both["method:GET,status:unknown,route:#{route}"] },
      both["method:GET,status:2xx,route:unknown"]
    ].join, output
  end

  SIDEKIQ = <<~RUBY
    require "sidekiq/testing"
    Sidekiq.logger.level = Logger::FATAL
    eval(BLOCK)
    Sidekiq::Testing.fake!
    Sidekiq::Testing.server_middleware { |chain| chain.add(StatsD::Instrument::SidekiqMetrics::ServerMiddleware) }
    class Clean
      include Sidekiq::Worker
      sidekiq_options queue: "low", retry: false
      def perform(what)
        raise ArgumentError, what if what == "fail"
        raise Interrupt, what if what == "stop"
      end
    end
    sent do
      %w[work fail stop].each { |what| Clean.perform_async(what) }
      Clean.perform_in(60, "later")
      4.times do
        Clean.perform_one
      rescue ArgumentError, Interrupt => e
        puts e.message
      end
    end
    server = StatsD::Instrument::SidekiqMetrics::ServerMiddleware.new
    stopped = StatsD::Instrument::SidekiqMetrics::ClientMiddleware.new.call("A", { "class" => "A" }, "q") { false }
    sent do
      p server.call(nil, { "class" => "Wrapper", "wrapped" => "Mail" }, "mail") { :value }, stopped
      # Milliseconds, as version 8 writes them.
      server.call(nil, { "class" => "New", "enqueued_at" => (Time.now.to_f * 1000).to_i - 5000 }, "q") { :value }
    end
    waited = StatsD.singleton_client.capture do
      server.call(nil, { "class" => "New", "enqueued_at" => (Time.now.to_f * 1000).to_i - 5000 }, "q") { :value }
    end
    p waited.first.value.between?(5000, 60_000)
    # Its presence is what makes a process a server.
    class Sidekiq::CLI; end
    eval(BLOCK)
    metrics = StatsD::Instrument::SidekiqMetrics
    p Sidekiq.server_middleware.map(&:klass).count(metrics::ServerMiddleware)
    p Sidekiq.client_middleware.map(&:klass).count(metrics::ClientMiddleware)
  RUBY

  def test_sidekiq
    output = output_of("sidekiq", "BLOCK = #{BLOCKS[2].inspect}", SIDEKIQ)
    tags = "#queue:low,class:Clean"
    run = lambda do |result, time = true|
      ["sidekiq.queue.time:T|d|#{tags}", "sidekiq.job.time:T|d|#{tags}", "sidekiq.jobs:1|c|#{tags},result:#{result}"]
        .drop(time ? 0 : 1)
    end
    failed = run["failed"].insert(2, "sidekiq.failures:1|c|#{tags},error:ArgumentError")
    expected = %w[fail stop] + (["sidekiq.enqueued:1|c|#{tags}"] * 3) + ["sidekiq.scheduled:1|c|#{tags}"] +
               run["ok"] + failed + run["interrupted"] + run["ok", false]
    more = [":value", "false", "sidekiq.job.time:T|d|#queue:mail,class:Mail",
            "sidekiq.jobs:1|c|#queue:mail,class:Mail,result:ok", "sidekiq.queue.time:T|d|#queue:q,class:New",
            "sidekiq.job.time:T|d|#queue:q,class:New", "sidekiq.jobs:1|c|#queue:q,class:New,result:ok",
            "true", "1", "1"]
    assert_equal expected + more, output.lines(chomp: true)
  end

  def test_values_are_limited
    require "statsd/instrument/limited_values"
    values = StatsD::Instrument::LimitedValues.new(2)
    assert_equal(%w[a b other a unknown unknown other], ["a", :b, "c", "a", nil, "", "d"].map { |value| values[value] })
    assert_raises(ArgumentError) { StatsD::Instrument::LimitedValues.new(0) }
  end
end
