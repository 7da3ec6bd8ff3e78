# frozen_string_literal: true

# Loads every test. `ruby -w test/run.rb [options of minitest]`
Dir[File.join(__dir__, "*_test.rb")].each { |file| require file }
