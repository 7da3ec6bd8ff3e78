# frozen_string_literal: true

require_relative "test_helper"

# The code of docs/rails.md, with small doubles of Rails and Sidekiq.
class RailsTest < TestCase
  PAGE = File.expand_path("../docs/rails.md", __dir__)

  DOUBLES = <<~RUBY
    require "statsd-instrument"
    module ActiveSupport
      module Notifications
        Event = Struct.new(:payload, :duration)
        SUBSCRIBERS = {}
        def self.subscribe(name, &block) = SUBSCRIBERS[name] = block
        def self.report(name, duration, **payload) = SUBSCRIBERS.fetch(name).call(Event.new(payload, duration))
      end
    end
    module Sidekiq
      module ServerMiddleware; end
      CHAIN = []
      def self.configure_server = yield(self)
      def self.server_middleware
        chain = Object.new
        chain.define_singleton_method(:add) { |middleware| CHAIN << middleware }
        yield chain
      end
      def self.run(job, queue, &work) = CHAIN.fetch(0).new.call(Object.new, job, queue, &work)
    end
    Mailer = Struct.new(:queue_name)
  RUBY

  CALLS = <<~RUBY
    notes = ActiveSupport::Notifications
    report = proc do
      action = { controller: "ShopController", action: "show" }
      notes.report("process_action.action_controller", 12.5, **action, status: 200, db_runtime: 1.5, view_runtime: nil)
      notes.report("process_action.action_controller", 3, **action, exception_object: RuntimeError.new)
      notes.report("perform.active_job", 4, job: Mailer.new("mail"))
      notes.report("perform.active_job", 5, job: Mailer.new("mail"), exception_object: RuntimeError.new)
      notes.report("sql.active_record", 6, name: "User Load")
      notes.report("sql.active_record", 7, name: "User Load", cached: true)
      puts Sidekiq.run({ "class" => "Wrapper", "wrapped" => "Clean" }, "low") { "value" }
      Sidekiq.run({ "class" => "Clean" }, "low") { raise ArgumentError, "no" }
    rescue ArgumentError => e
      puts e.message
    end
    StatsD.singleton_client.capture(&report).each { |one| puts one.source.sub(/(?<=job:)[\\d.e-]+(?=\\|d\\|#job:Clean)/, "TIME") }
  RUBY

  def test_what_the_page_says_is_sent
    blocks = File.read(PAGE).scan(/^```ruby\n(.*?)^```$/m).flatten
    assert_equal 2, blocks.size
    output, status = ruby([DOUBLES, *blocks, CALLS].join("\n"), env: { "STATSD_ENV" => "test" })
    assert_predicate status, :success?, output
    request = "controller:ShopController,action:show"
    assert_equal <<~TEXT, output
      value
      no
      rails.request:12.5|d|##{request},status:200
      rails.request.db:1.5|d|##{request},status:200
      rails.request:3|d|##{request},status:500
      rails.job:4|d|#job:Mailer,queue:mail
      rails.job:5|d|#job:Mailer,queue:mail
      rails.job.failed:1|c|#job:Mailer,queue:mail
      rails.sql:6|d|#name:User Load
      sidekiq.job:TIME|d|#job:Clean,queue:low
      sidekiq.job:TIME|d|#job:Clean,queue:low
      sidekiq.job.failed:1|c|#job:Clean,queue:low,error:ArgumentError
    TEXT
  end
end
